"""robustcaps inspect: what routing and decoders of capsule networks do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import DataDir, Device, Plugins, Untrained, console, examples
from robustcaps.cli.parsing import inspected_part, sample_numbers


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "robustcaps inspect routing out/quick --samples 0,7",
            "robustcaps inspect decoder --model vector-capsnet-small",
        )
    )(inspect)


def inspect(
    part: Annotated[
        str, typer.Argument(help="routing (distances of votes, matrix capsules) or decoder (vector capsules).")
    ],
    out: Annotated[
        Path | None,
        typer.Argument(help="The out folder of a run; with --model, any folder.", show_default="out, with --model"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model to inspect.", show_default="all models of the run")
    ] = None,
    data: Annotated[str | None, typer.Option(help="With --model: the dataset.", show_default="toys")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="With --model: a file with weights.", show_default="the shipped weights")
    ] = None,
    untrained: Untrained = False,
    samples: Annotated[
        str | None, typer.Option(help="Indices of samples, e.g. 0,7.", show_default="the first of three classes")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Draw what routing or decoders of capsule networks do; the figures go to OUT/inspection."""
    from robustcaps.cli.progress import RunBars
    from robustcaps.cli.rendering import show_files, show_notes
    from robustcaps.inspection import select_models, write_inspection
    from robustcaps.suite.resolve import Resolver, RuntimeConfig

    what, folder = inspected_part(part), out or Path("out")
    chosen = None if samples is None else sample_numbers(samples)
    models = select_models(out, model, data=data, weights=weights, untrained=untrained, samples=chosen)
    resolver = Resolver(RuntimeConfig(data_dir, device, tuple(plugin or ())))
    with RunBars(console) as bars:
        written = write_inspection(what, models, folder, resolver, samples=chosen, progress=bars.loading)
    show_notes(console, written.notes)
    show_files(console, written.files)
