"""What the terminal shows of a suite, or of each suite of a collection: how long it will take, and how it ended."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from robustcaps.analysis.results import findings, read_rows
from robustcaps.analysis.tables.summary import violations
from robustcaps.cli import console as show
from robustcaps.execution.runner import Run
from robustcaps.suite.estimate import describe_machine, estimate, in_words
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import load_collection, load_suite


def show_run(console: Console, run: Run) -> None:
    """Print what a run found and wrote, and what failed in it; of a collection, suite by suite."""
    if run.parts:
        for part in run.parts:
            console.rule(escape(part.out.name), align="left")
            show_run(console, part)
        console.rule(align="left")
        show.show_files(console, run.files)
        return
    if not run.table.empty:
        show.show_summary(console, run.table)
        show.show_violations(console, violations(read_rows(run.out)))
        show.show_findings(console, findings(run.out))
    show.show_verdicts(console, run.verdicts)
    if run.computed == 0:
        console.print(f"Nothing to compute: all {run.reused} cells were finished before.")
    show.show_files(console, run.files)
    for reason in run.untrained:
        console.print(f"[red]not trained[/]: {escape(reason)}", soft_wrap=True, highlight=False)
    for failure in run.failures:
        console.print(show.failure_line(failure), soft_wrap=True, highlight=False)
    if run.failures:
        console.print(
            f"{len(run.failures)} cells failed; their tracebacks are in {run.out}/cells/*.failed.json. "
            "Retry just these with the same command.",
            soft_wrap=True,
            highlight=False,
        )


def show_checks(console: Console, path: Path, config: RuntimeConfig) -> None:
    """Print the cells of a suite, or of all suites of a collection, and about how long they take on this machine."""
    collection = load_collection(path)
    resolver = Resolver(config)
    sums = [_show_check(console, suite, resolver) for suite in collection.suites]
    if len(sums) > 1:
        cells, rows, passes, seconds = (sum(column) for column in zip(*sums, strict=True))
        amount = f"{len(sums)} suites, {cells:,.0f} cells, {rows:,.0f} rows, {_in_time(passes, seconds, config)}"
        console.print(f"{path}: fine. {amount}", soft_wrap=True)


def _show_check(console: Console, path: Path, resolver: Resolver) -> tuple[float, float, float, float]:
    """Print what one suite takes; return its cells, rows, passes and seconds."""
    loaded = load_suite(path)
    cells = make_plan(loaded, resolver, source=str(path))
    for spec in loaded.models:
        if spec.train is not None:
            asked = ", ".join(f"{key} {value}" for key, value in spec.train.model_dump(exclude_none=True).items())
            console.print(f"trains {escape(spec.label)} first: {asked}", soft_wrap=True, highlight=False)
    for cell in cells:
        console.print(f"{cell.id}  {escape(cell.label)}: {cell.rows} rows", soft_wrap=True, highlight=False)
    lines = estimate(loaded, cells, resolver)
    for line in lines:
        training = f", and {in_words(line.training)} of training" if line.training else ""
        speed = f"{1000 * line.speed.forward:.2g} ms per image, {1000 * line.speed.gradient:.2g} with its gradient"
        text = f"{line.model} on {line.data}: about {in_words(line.work)} at most{training} ({speed})"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    rows, passes = sum(cell.rows for cell in cells), sum(cell.work for cell in cells)
    seconds = sum(line.total for line in lines)
    amount = f"{len(cells)} cells, {rows:,} rows, {_in_time(passes, seconds, resolver.config)}"
    console.print(f"{path}: fine. {amount}", soft_wrap=True)
    return len(cells), rows, passes, seconds


def _in_time(passes: float, seconds: float, config: RuntimeConfig) -> str:
    """Say how many passes work takes, and how long that is here."""
    return (
        f"about {passes:,.0f} forward passes at most: "
        f"about {in_words(seconds)} at most, on this machine ({describe_machine(config.device)})."
    )
