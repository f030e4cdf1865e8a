"""robustcaps inspect: what routing and decoders of capsule networks do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from robustcaps.cli.options import DataDir, Device, Plugins, Untrained, console, examples
from robustcaps.cli.parsing import sample_numbers

OutFolder = Annotated[
    Path | None,
    typer.Argument(help="The out folder of a run; with --model, any folder.", show_default="out, with --model"),
]
Model = Annotated[str | None, typer.Option(help="The model to inspect.", show_default="all models of the run")]
Data = Annotated[str | None, typer.Option(help="With --model: the dataset.", show_default="toys")]
Weights = Annotated[
    Path | None, typer.Option(help="With --model: a file with weights.", show_default="the shipped weights")
]
Samples = Annotated[
    str | None, typer.Option(help="Indices of samples, e.g. 0,7.", show_default="the first of three classes")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    inspect = typer.Typer(help="Look inside capsule networks: figures in OUT/inspection.", no_args_is_help=True)
    calls = ("out/quick", "--model matrix-capsnet-small --samples 0,7")
    inspect.command(epilog=examples(*(f"robustcaps inspect routing {call}" for call in calls)))(routing)
    calls = ("out/quick", "--model vector-capsnet-small")
    inspect.command(epilog=examples(*(f"robustcaps inspect decoder {call}" for call in calls)))(decoder)
    app.add_typer(inspect, name="inspect")


def routing(
    out: OutFolder = None,
    model: Model = None,
    data: Data = None,
    weights: Weights = None,
    untrained: Untrained = False,
    samples: Samples = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Draw how far votes are from their capsules, iteration by iteration (matrix capsules)."""
    _inspect("routing", out, model, data, weights, untrained, samples, device, data_dir, plugin)


def decoder(
    out: OutFolder = None,
    model: Model = None,
    data: Data = None,
    weights: Weights = None,
    untrained: Untrained = False,
    samples: Samples = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Draw what class capsules are decoded to, and what each dimension changes (vector capsules)."""
    _inspect("decoder", out, model, data, weights, untrained, samples, device, data_dir, plugin)


def _inspect(
    part: Literal["routing", "decoder"],
    out: Path | None,
    model: str | None,
    data: str | None,
    weights: Path | None,
    untrained: bool,
    samples: str | None,
    device: str,
    data_dir: Path | None,
    plugin: list[Path] | None,
) -> None:
    from robustcaps.cli.progress import RunBars
    from robustcaps.cli.rendering import show_files, show_notes
    from robustcaps.inspection import select_models, write_inspection
    from robustcaps.suite.resolve import Resolver, RuntimeConfig

    chosen = None if samples is None else sample_numbers(samples)
    models = select_models(out, model, data=data, weights=weights, untrained=untrained, samples=chosen)
    resolver = Resolver(RuntimeConfig(data_dir, device, tuple(plugin or ())))
    with RunBars(console) as bars:
        folder = out or Path("out")
        written = write_inspection(part, models, folder, resolver, samples=chosen, progress=bars.loading)
    show_notes(console, written.notes)
    show_files(console, written.files)
