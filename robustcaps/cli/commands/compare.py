"""robustcaps compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import console, examples


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "robustcaps compare out/before out/after",
            "robustcaps compare results out/results --out .",
            "robustcaps compare out/before out/after --markdown",
        )
    )(compare)


def compare(
    first: Annotated[Path, typer.Argument(metavar="OUT1", help="The out folder of a run, or of a collection.")],
    second: Annotated[Path, typer.Argument(metavar="OUT2", help="The out folder of another one, e.g. after a change.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for compare.html and compare.md.", show_default="OUT2")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste; write no file.")] = False,
) -> None:
    """Say what changed between two runs: settings, versions, and robust accuracy on the same samples."""
    from robustcaps.analysis.run_comparison import compare as compare_runs
    from robustcaps.cli.rendering import show_files, show_grid, show_sentences

    comparison = compare_runs(first, second)
    if markdown:
        typer.echo(comparison.markdown())
        return
    for grid in comparison.grids():
        show_grid(console, grid)
    show_sentences(console, [*comparison.findings, *comparison.notes])
    show_files(console, comparison.write(out))
