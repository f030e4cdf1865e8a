"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from robustcaps.errors import UserError
from robustcaps.options import MAX_COUNT

console = Console(emoji=False)  # 'cnn:a:' is a name, not an emoji

SuiteFile = Annotated[
    Path, typer.Argument(help="A suite file, a collection, or the name of a packaged one, e.g. quick.")
]
OutFolder = Annotated[Path, typer.Argument(help="The out folder of a run.")]
ModelName = Annotated[str, typer.Argument(help="A model, e.g. cnn or, with a tag, cnn:b.")]
DataName = Annotated[str, typer.Option("--data", help="The dataset.")]
DataSettings = Annotated[
    list[str] | None,
    typer.Option("--data-set", metavar="NAME=VALUE", help="Dataset option, e.g. views=familiar-azimuths; repeatable."),
]
Split = Annotated[str, typer.Option(help="train or test.")]
Limit = Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="How many samples to take.")]
BatchSize = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Images per pass; results do not depend on it.")]
ShardSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_COUNT,
        help="Samples per shard, the unit of work; results do not depend on it.",
        show_default="as many as take seconds to minutes",
    ),
]
Norm = Annotated[str, typer.Option(help="linf or l2.")]
AttackNorm = Annotated[
    str | None, typer.Option(help="linf, l2, l1, l0, affine or viewpoint (default: the attack's own, mostly linf).")
]
Weights = Annotated[
    Path | None, typer.Option(help="A safetensors file with weights.", show_default="the shipped weights")
]
Untrained = Annotated[bool, typer.Option("--untrained", help="Allow a model without trained weights.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Compiled = Annotated[
    bool,
    typer.Option("--compile/--no-compile", help="Compile the networks: slow to start, then faster on a GPU."),
]
Autocast = Annotated[bool, typer.Option(help="Compute in bfloat16 outside of routing: less exact, faster on a GPU.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory that contains the datasets.", envvar="ROBUSTCAPS_DATA", show_default="./data"),
]
Plugins = Annotated[list[Path] | None, typer.Option("--plugin", help="A Python file with plugins; repeatable.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option, e.g. --set steps=20; repeatable.")
]


def examples(*commands: str) -> str:
    """Return the end of a help text: example calls."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  {command}" for command in commands)])


def check_folder_of(file: Path | None, option: str) -> None:
    """Refuse an output file whose folder does not exist, before any work is done."""
    if file is not None and not file.absolute().parent.is_dir():
        raise UserError(f"{option} {file}: no such folder.")


def load_plugins(plugins: list[Path] | None) -> None:
    """Register what the plugin files bring."""
    from robustcaps.registry import load_plugin

    for path in plugins or ():
        load_plugin(path)
