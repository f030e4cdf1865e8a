"""robustcaps train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from robustcaps.cli.model_fields import options_of
from robustcaps.cli.options import (
    Autocast,
    Compiled,
    DataDir,
    DataSettings,
    Device,
    Plugins,
    Settings,
    console,
    examples,
    load_plugins,
)
from robustcaps.cli.parsing import assignments
from robustcaps.training_options import TrainingOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "robustcaps train cnn --epochs 5",
            "robustcaps train matrix-capsnet-small --data mnist --seed 1 --tag b",
            "robustcaps train cnn --adversary-eps 0.1 --adversary-steps 7",
        )
    )(train)


@options_of(TrainingOptions, panel="Training")
def train(
    model: Annotated[str, typer.Argument(help="A registered model, e.g. cnn.")],
    data: Annotated[str, typer.Option(help="Dataset to train on.")] = "toys",
    data_set: DataSettings = None,
    out: Annotated[Path | None, typer.Option(help="Output folder.", show_default="runs/<data>-<model>-<tag>")] = None,
    tag: Annotated[str, typer.Option(help="Distinguishes weights of the same model: 'cnn:b' has tag b.")] = "a",
    resume: Annotated[bool, typer.Option(help="Resume an interrupted training.")] = True,
    settings: Settings = None,
    device: Device = "auto",
    compiled: Compiled = False,
    autocast: Autocast = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    **training_options: Any,
) -> None:
    """Train a model, with checkpoints; write its weights (safetensors) and a model card (JSON)."""
    from robustcaps.cli.progress import TrainBars
    from robustcaps.cli.rendering import show_card, show_files
    from robustcaps.training import train as train_model

    load_plugins(plugin)
    folder = out or Path("runs") / f"{data}-{model}-{tag}"
    with TrainBars(console) as bars:
        card = train_model(
            model,
            out=folder,
            data=data,
            data_options=assignments(data_set, "--data-set"),
            options=assignments(settings),
            tag=tag,
            resume=resume,
            data_dir=data_dir,
            device=device,
            compile=compiled,
            autocast=autocast,
            progress=bars,
            **training_options,
        )
    show_card(console, card)
    show_files(console, [folder / f"{card.stem}.safetensors", folder / f"{card.stem}.json", folder / "log.csv"])
