"""robustcaps table, robustcaps figures, robustcaps report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from robustcaps.cli.options import OutFolder, Plugins, console, examples, load_plugins
from robustcaps.errors import UserError

if TYPE_CHECKING:
    from robustcaps.analysis.collection import CollectionResults
    from robustcaps.analysis.results import Results


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog=examples("robustcaps table out/quick", "robustcaps table out/quick --latex"))(table)
    app.command(
        epilog=examples(
            "robustcaps figures out/quick --published",
            "robustcaps figures out/quick --only accuracy --format pdf --style paper",
        )
    )(figures)
    app.command(epilog=examples("robustcaps report out/quick", "robustcaps report out/quick --open"))(report)


def table(
    out: OutFolder,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, to paste.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs), to paste.")] = False,
    plugin: Plugins = None,
) -> None:
    """Write all tables (CSV, Markdown, LaTeX) again from the stored rows, and print the main ones."""
    from robustcaps.analysis.collection import CollectionResults, all_results, load_results
    from robustcaps.cli.rendering import show_files, show_main_tables
    from robustcaps.utils.grid import grids_latex, grids_markdown

    if markdown and latex:
        raise UserError("table: choose --markdown or --latex, not both.")
    load_plugins(plugin)
    loaded, files = load_results(out), []
    for results in all_results(loaded):
        files += results.write_tables()
        if markdown:
            typer.echo(grids_markdown(results.main_grids()))
        elif latex:
            typer.echo(grids_latex(results.main_grids(), str(results.record["suite"]["name"])))
        else:
            show_main_tables(console, results)
    if isinstance(loaded, CollectionResults):
        files += loaded.write_overview()
    if not (markdown or latex):
        show_files(console, files)
    _exit_if_incomplete(loaded)


def figures(
    out: OutFolder,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Draw only this figure; repeatable.", show_default="all")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="FORMAT", help="png, svg or pdf; repeatable.", show_default="png and svg"),
    ] = None,
    width: Annotated[
        float | None, typer.Option(help="Inches.", show_default="as wide as needed; 3.3 in the style paper")
    ] = None,
    style: Annotated[
        str, typer.Option(help="screen, or paper: small fonts, thin lines, no titles, drawn into figures/paper.")
    ] = "screen",
    published: Annotated[
        bool | None, typer.Option(help="Draw published curves beside ours.", show_default="as the suite says")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Draw the figures again from the stored rows, for the screen or for a paper."""
    from robustcaps.analysis.collection import all_results, load_results
    from robustcaps.cli.rendering import show_files

    load_plugins(plugin)
    loaded = load_results(out)
    options: dict[str, Any] = {"only": only or (), "formats": formats or ("png", "svg"), "style": style, "width": width}
    files = [file for results in all_results(loaded) for file in results.write_figures(published=published, **options)]
    show_files(console, files)
    _exit_if_incomplete(loaded)


def report(
    out: OutFolder,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    plugin: Plugins = None,
) -> None:
    """Write report.html again: one page with charts, images, the numbers and how they were made; the tables, too."""
    from robustcaps.analysis.collection import CollectionResults, all_results, load_results
    from robustcaps.cli.rendering import show_files

    load_plugins(plugin)
    loaded, files = load_results(out), []
    for results in all_results(loaded):
        files += [*results.write_tables(), results.write_report()]
    if isinstance(loaded, CollectionResults):
        files += loaded.write_overview()
    show_files(console, files)
    if open_page:
        typer.launch((out / "report.html").absolute().as_uri())
    _exit_if_incomplete(loaded)


def _exit_if_incomplete(results: Results | CollectionResults) -> None:
    """Name the cells that are missing or damaged, and end with exit code 1 if there are any."""
    from robustcaps.cli.rendering import show_problems

    problems = results.problems
    show_problems(Console(stderr=True, emoji=False), problems)
    if problems:
        raise typer.Exit(1)
