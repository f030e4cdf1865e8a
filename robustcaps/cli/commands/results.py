"""robustcaps table, robustcaps figures, robustcaps report."""

from __future__ import annotations

from typing import Annotated

import typer

from robustcaps.cli.options import OutFolder, Plugins, console, examples, load_plugins


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
    runs = all_results(load_results(out))
    show_files(console, [file for results in runs for file in results.write_figures(published=published)])


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
