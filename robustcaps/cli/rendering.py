"""What the terminal shows of results: tables, sentences, files, failures, estimates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from robustcaps.analysis.tables.summary import summary_grids
from robustcaps.cli.escaping import escape
from robustcaps.utils.grid import Grid, GridCell
from robustcaps.utils.printable import printable
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from robustcaps.analysis.results import Results
    from robustcaps.benchmark import Run
    from robustcaps.execution.execute_cell import Outcome
    from robustcaps.models.cards import ImportedCard, ModelCard
    from robustcaps.suite.estimate import SuiteEstimate

STYLES = {"good": "green", "warning": "yellow", "bad": "red"}
MAX_LISTED_FILES = 12
"""More files are not listed one by one."""


def show_run(console: Console, run: Run) -> None:
    """Print what a run found and wrote, and what failed; for a collection, suite by suite."""
    if run.parts:
        for part in run.parts:
            console.rule(escape(part.out.name), align="left")
            show_run(console, part)
        console.rule(align="left")
        show_files(console, run.files)
        return
    if run.part is not None:
        text = f"Part {run.part}: {run.shards} shards computed. Join all parts with: robustcaps merge OUT PART_OUT..."
        show_sentences(console, [text])
    if run.results is not None:
        show_main_tables(console, run.results)
        show_violations(console, run.results.violations)
        show_sentences(console, run.results.findings)
    if run.computed == 0 and run.part is None:
        console.print(f"Nothing to compute: all {run.reused} cells were finished before.")
    show_files(console, run.files)
    for reason in run.untrained:
        console.print(f"[red]not trained[/]: {escape(reason)}", soft_wrap=True, highlight=False)
    for failure in run.failures:
        console.print(failure_line(failure), soft_wrap=True, highlight=False)
    if run.failures:
        console.print(
            f"{len(run.failures)} cells failed; their tracebacks are in {escape(str(run.out))}/cells/*.failed.json. "
            "The same command retries just these.",
            soft_wrap=True,
            highlight=False,
        )


def show_main_tables(console: Console, results: Results) -> None:
    """Print the summary of the attacks and the first table of every kind of diagnostic."""
    for grid in results.main_grids():
        show_grid(console, grid)


def show_summary(console: Console, table: pd.DataFrame) -> None:
    """Print a summary table."""
    for grid in summary_grids(table):
        show_grid(console, grid)


def show_grid(console: Console, grid: Grid) -> None:
    """Print a grid; numbers are never cut off, and what is wider than the terminal wraps."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in grid.columns:
        table.add_column(escape(name), justify="right" if name in grid.numeric else "left", no_wrap=True)
    for row in grid.rows:
        table.add_row(*map(_markup, row))
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    wide = Console(file=console.file, width=max(needed, console.width), emoji=False)
    if grid.title:
        console.print(printable(grid.title), style="italic", markup=False, highlight=False, soft_wrap=True)
    wide.print(table)
    if grid.note:
        console.print(printable(grid.note), style="dim", markup=False, highlight=False)


def _markup(cell: GridCell) -> str:
    style = STYLES.get(cell.tone) or ("bold" if cell.bold else "")
    text = f"[{style}]{escape(cell.text)}[/]" if style and cell.text else escape(cell.text)
    return f"{text}\n[dim]{cell.interval}[/dim]" if cell.interval else text


def show_clean_accuracy(console: Console, rows: pd.DataFrame) -> None:
    """Print the accuracy without an attack."""
    samples = rows.drop_duplicates("index")
    right, n = int((samples["clean_pred"] == samples["label"]).sum()), len(samples)
    low, high = (100 * float(end) for end in wilson(right, n))
    console.print(f"Clean accuracy: {100 * right / n:.1f} % (95 % CI {low:.0f}-{high:.0f}, n = {n})", highlight=False)


def show_violations(console: Console, counts: pd.DataFrame) -> None:
    """Print which attack broke which rule how often."""
    for line in counts.itertuples():
        text = (
            f"{line.attack} on {line.model}: {line.rows} rows are invalid ({line.violation}) and count as not fooled: "
            f"the attack {line.sentence}."
        )
        show_warning(console, text)


def show_warning(console: Console, text: str) -> None:
    """Print a warning of one line."""
    console.print(f"[yellow]warning[/]: {escape(text)}", soft_wrap=True)


def show_sentences(console: Console, sentences: Iterable[str]) -> None:
    """Print sentences, one per line."""
    for text in sentences:
        console.print(printable(text), soft_wrap=True, highlight=False, markup=False)


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print what could not be drawn, and why."""
    show_sentences(console, (f"not drawn: {note}" for note in notes))


def show_files(console: Console, files: Sequence[Path]) -> None:
    """Print the paths of the files that were written; many are grouped by folder and by endings."""
    console.print("Written:")
    lines = map(str, files) if len(files) <= MAX_LISTED_FILES else _group_files(files)
    show_sentences(console, (f"  {line}" for line in lines))


def _group_files(files: Sequence[Path]) -> Iterator[str]:
    """Yield a line per folder and set of endings, such as 'out/quick: models, table (csv, md)'."""
    endings: dict[tuple[Path, str], list[str]] = {}
    for path in files:
        endings.setdefault((path.parent, path.stem), []).append(path.suffix[1:])
    groups: dict[tuple[Path, tuple[str, ...]], list[str]] = {}
    for (folder, stem), suffixes in endings.items():
        groups.setdefault((folder, tuple(suffixes)), []).append(stem)
    for (folder, kinds), stems in groups.items():
        if len(stems) == len(kinds) == 1:
            yield str(folder / f"{stems[0]}.{kinds[0]}")
        else:
            yield f"{folder}: {', '.join(stems)} ({', '.join(kinds)})"


def show_problems(console: Console, problems: Sequence[str]) -> None:
    """Print what is missing from the tables, and how to compute it."""
    for text in problems:
        console.print(f"[red]missing[/]: {escape(text)}", soft_wrap=True, highlight=False)
    if problems:
        show_sentences(console, ["The same `robustcaps run` computes what is missing."])


def show_commands(console: Console, title: str, commands: Iterable[str]) -> None:
    """Print commands to try."""
    show_sentences(console, [title, *(f"  {command}" for command in commands)])


def failure_line(outcome: Outcome) -> str:
    """Return the violation, the cell and the reason of a failure as one line of markup."""
    return f"[red]failed[/] ({outcome.violation}): {escape(f'{outcome.cell.label}: {outcome.reason}')}"


def show_verdict(console: Console, summary: str, checks: pd.DataFrame) -> None:
    """Print what every check observed, what to do about flagged ones, and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("check", "flag", "observation", "what to do"):
        table.add_column(name, no_wrap=name in ("check", "flag"))
    for line in checks.itertuples():
        flag = "[red]proof[/]" if line.proof else "[yellow]sign[/]" if line.flagged else ""
        remedy = str(line.remedy) if line.flagged else ""
        table.add_row(escape(str(line.check)), flag, escape(str(line.words)), escape(remedy))
    console.print(table)
    show_sentences(console, [summary])


def show_card(console: Console, card: ModelCard) -> None:
    """Print the result of a training."""
    low, high = card.interval
    robust = "" if card.robust_accuracy is None else f"{100 * card.robust_accuracy:.1f} % at eps {card.adversary_eps}, "
    console.print(
        f"{card.name} on {card.data}: test accuracy {100 * card.accuracy:.2f} % "
        f"({100 * low:.2f} to {100 * high:.2f}, n = {card.n_test}), {robust}"
        f"{card.parameters:,} parameters, {card.seconds:.0f} s.",
        soft_wrap=True,
    )


def show_imported_card(console: Console, card: ImportedCard) -> None:
    """Print what was imported, and how accurate it is."""
    accuracy = f"test accuracy {card.evaluation}"
    if card.accuracy is not None and card.interval is not None:
        low, high = card.interval
        accuracy = f"test accuracy {100 * card.accuracy:.2f} % ({100 * low:.2f} to {100 * high:.2f}, n = {card.n_test})"
    unused = f" Not used: {', '.join(card.unused)}." if card.unused else ""
    show_sentences(console, [f"{card.name} on {card.data}: {card.parameters:,} parameters, {accuracy}.{unused}"])


def show_estimates(console: Console, source: Path, estimates: Sequence[SuiteEstimate], device: str) -> None:
    """Print the cells of each suite and about how long they take on this machine."""
    from robustcaps.suite.estimate import describe_machine, format_duration

    machine = describe_machine(device)

    def total(path: Path, parts: Sequence[SuiteEstimate], suites: str = "") -> str:
        cells, rows = (sum(each) for each in zip(*((len(part.cells), part.rows) for part in parts), strict=True))
        passes, seconds = (sum(each) for each in zip(*((part.passes, part.seconds) for part in parts), strict=True))
        cost = f"about {passes:,.0f} forward passes at most: about {format_duration(seconds)} at most"
        counted = f"{cells:,} cell{'s' if cells != 1 else ''}, {rows:,} rows"
        return f"{path}: fine. {suites}{counted}, {cost}, on this machine ({machine})."

    for estimate in estimates:
        show_sentences(console, [*estimate.lines(), total(estimate.source, [estimate])])
    if len(estimates) > 1:
        show_sentences(console, [total(source, estimates, f"{len(estimates)} suites, ")])
