"""robustcaps table, robustcaps figures, robustcaps report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from robustcaps.cli.options import OutFolder, Plugins, console, examples, load_plugins

if TYPE_CHECKING:
    from robustcaps.analysis.collection import CollectionResults
    from robustcaps.analysis.results import Results


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=examples("robustcaps table out/quick", "robustcaps table out/quick --markdown"))(table)
    app.command(epilog=examples("robustcaps figures out/quick --published"))(figures)
    app.command(epilog=examples("robustcaps report out/quick"))(report)


def table(
    out: OutFolder,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste.")] = False,
    plugin: Plugins = None,
) -> None:
    """Write all tables (CSV and Markdown) again from the stored rows, and print the main ones."""
    from robustcaps.analysis.collection import CollectionResults, all_results, load_results
    from robustcaps.cli.rendering import show_files, show_main_tables
    from robustcaps.utils.grid import grids_markdown

    load_plugins(plugin)
    loaded, files = load_results(out), []
    for results in all_results(loaded):
        files += results.write_tables()
        if markdown:
            typer.echo(grids_markdown(results.main_grids()))
        else:
            show_main_tables(console, results)
    if isinstance(loaded, CollectionResults):
        files += loaded.write_overview()
    if not markdown:
        show_files(console, files)
    _exit_if_incomplete(loaded)


def figures(
    out: OutFolder,
    published: Annotated[
        bool | None, typer.Option(help="Draw published curves beside ours.", show_default="as the suite says")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Draw all figures again from the stored rows."""
    from robustcaps.analysis.collection import all_results, load_results
    from robustcaps.cli.rendering import show_files

    load_plugins(plugin)
    loaded = load_results(out)
    runs = all_results(loaded)
    show_files(console, [file for results in runs for file in results.write_figures(published=published)])
    _exit_if_incomplete(loaded)


def report(out: OutFolder, plugin: Plugins = None) -> None:
    """Write report.html again: one page with the figures, the numbers and how they were made; the tables, too."""
    from robustcaps.analysis.collection import CollectionResults, all_results, load_results
    from robustcaps.cli.rendering import show_files

    load_plugins(plugin)
    loaded, files = load_results(out), []
    for results in all_results(loaded):
        files += [*results.write_tables(), results.write_report()]
    if isinstance(loaded, CollectionResults):
        files += loaded.write_overview()
    show_files(console, files)
    _exit_if_incomplete(loaded)


def _exit_if_incomplete(results: Results | CollectionResults) -> None:
    """Name the cells that are missing or damaged, and end with exit code 1 if there are any."""
    from robustcaps.cli.rendering import show_problems

    problems = results.problems
    show_problems(Console(stderr=True, emoji=False), problems)
    if problems:
        raise typer.Exit(1)
