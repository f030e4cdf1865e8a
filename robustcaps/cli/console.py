"""What the terminal shows: progress bars with the time left, summary tables, where things were written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from robustcaps import training
from robustcaps.data import download
from robustcaps.execution import engines
from robustcaps.execution.execute_cell import Outcome
from robustcaps.suite.plan import Work


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=console, transient=True)


class _Bars:
    """A context that shows progress bars."""

    def __init__(self, console: Console, bars: Progress | None = None) -> None:
        self.console = console
        self.bars = bars or _bars(console)
        self.loading_task: TaskID | None = None

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def loading(self, done: int, total: int) -> None:
        """Show how many images of the data are ready."""
        if self.loading_task is None:
            self.loading_task = self.bars.add_task("preparing images", total=total)
        self.bars.update(self.loading_task, completed=done, total=total, visible=done < total)


class RunBars(_Bars, engines.Listener):
    """Progress of a run: a bar for the whole, one for each cell at work, a line for each that ended."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.tasks: dict[str, TaskID] = {}
        self.overall: TaskID | None = None
        self.done = 0.0
        self.cells = (0, 0)

    @property
    def training(self) -> TrainBars:
        """A listener for the trainings that come before the cells, with its bars among these."""
        return TrainBars(self.console, self.bars)

    def data_prepared(self, done: int, total: int) -> None:
        self.loading(done, total)

    def counting(self, description: str) -> Callable[[int, int], None]:
        """Return a callback that shows (done, total) as one bar."""
        task = self.bars.add_task(description)
        return lambda done, total: self.bars.update(task, completed=done, total=total)

    def suite_started(self, name: str, number: int, count: int) -> None:
        self.console.rule(f"{escape(name)} ({number} of {count})", align="left")

    def run_started(self, cells: Sequence[Work], finished: Sequence[Work]) -> None:
        self.cells, self.done = (0, len(cells)), 0.0
        if self.overall is not None:
            self.bars.remove_task(self.overall)
            self.overall = None
        if finished:
            self.console.print(f"{len(finished)} of {len(cells) + len(finished)} cells are finished already.")
        if cells:
            self.overall = self.bars.add_task("all cells", total=sum(cell.work for cell in cells))

    def cell_started(self, cell: Work) -> None:
        self.tasks[cell.id] = self.bars.add_task(cell.label, total=cell.rows)

    def cell_moved(self, cell: Work, done: int) -> None:
        self.bars.update(self.tasks[cell.id], completed=done)
        if self.overall is not None:
            self.bars.update(self.overall, completed=self.done + cell.work * done / cell.rows)

    def cell_ended(self, outcome: Outcome) -> None:
        cell = outcome.cell
        if cell.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(cell.id))
        self.done += cell.work
        self.cells = (self.cells[0] + 1, self.cells[1])
        if self.overall is not None:
            self.bars.update(self.overall, completed=self.done)
        count = f"[{self.cells[0]}/{self.cells[1]}]"
        line = failure_line(outcome) if outcome.rows is None else f"{escape(cell.label)}: {outcome.seconds:.1f} s"
        self.console.print(f"{escape(count)} {line}", soft_wrap=True, highlight=False)


def failure_line(outcome: Outcome) -> str:
    """Return the name of a failure, its cell and its reason as one line, marked up."""
    return f"[red]failed[/] ({outcome.violation}): {escape(f'{outcome.cell.label}: {outcome.reason}')}"


SHOWN = ("loss", "train_accuracy", "validation_accuracy", "robust_accuracy", "lr", "seconds")
"""What the line of an epoch shows of the log, beside how many classes are predicted."""


class TrainBars(_Bars, training.Listener):
    """Progress of a training: one bar for all epochs, a line for each that ended."""

    def __init__(self, console: Console, bars: Progress | None = None) -> None:
        super().__init__(console, bars)
        self.task: TaskID | None = None
        self.epochs = 0
        self.name = ""

    def training(self, name: str) -> None:
        self._close()
        self.name = f"{name}, "

    def started(self, epochs: int, steps: int, done: int) -> None:
        self.epochs = epochs
        self.task = self.bars.add_task(f"{self.name}training", total=epochs * steps, completed=done * steps)
        if done:
            self.console.print(f"{self.name}{done} of {epochs} epochs are done already.", markup=False)

    def step(self, epoch: int, step: int, steps: int, loss: float, lr: float) -> None:
        if self.task is not None:
            description = f"{self.name}epoch {epoch} of {self.epochs}: loss {loss:.4f}, lr {lr:.2g}"
            self.bars.update(self.task, completed=(epoch - 1) * steps + step, description=description)

    def epoch_end(self, epoch: int, metrics: Mapping[str, float | str | None]) -> None:
        known = {name: metrics[name] for name in SHOWN if metrics.get(name) is not None}
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in known.items())
        classes = len(str(metrics["predictions"]).split())
        shown += f", classes {metrics['predicted_classes']:.1f}/{classes}"
        line = f"{self.name}epoch {epoch} of {self.epochs}: {shown}"
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)

    def finished(self) -> None:
        self._close()

    def _close(self) -> None:
        if self.task is not None:
            self.bars.remove_task(self.task)
            self.task = None

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]warning[/]: {escape(message)}", soft_wrap=True)


class DownloadBars(_Bars, download.Listener):
    """Progress of a download: a bar with speed and time left for the file at work, a line for each that is there."""

    def __init__(self, console: Console) -> None:
        size = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        times = (TextColumn("left"), TimeRemainingColumn())
        super().__init__(console, Progress(*size, *times, console=console, transient=True))
        self.tasks: dict[str, TaskID] = {}

    def found(self, path: Path) -> None:
        self._say(f"{path}: is there already, and right.")

    def put_aside(self, path: Path, aside: Path, problem: str) -> None:
        self._say(f"{path}: {problem}; it is kept as {aside.name}.")

    def moved(self, name: str, done: int, total: int | None) -> None:
        if name not in self.tasks:  # what came before is no part of the speed
            self.tasks[name] = self.bars.add_task(name, completed=done)
        self.bars.update(self.tasks[name], completed=done, total=total)

    def failed(self, problem: str) -> None:
        self._say(f"{problem}; another place is tried.")

    def fetched(self, path: Path, url: str) -> None:
        if path.name in self.tasks:
            self.bars.remove_task(self.tasks.pop(path.name))
        self._say(f"{path}: {path.stat().st_size:,} bytes from {url}; its SHA-256 is right.")

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


def show_summary(console: Console, table: pd.DataFrame) -> None:
    """Print the summary: one line per (data, model, attack, goal, norm, unit), one column per eps."""
    if table.empty:
        return
    for (data, norm, unit), part in table.groupby(["data", "norm", "unit"], sort=False):
        for goal, rate in (("untargeted", "accuracy"), ("targeted", "success")):
            chosen = part[part["goal"] == goal]
            if not chosen.empty:
                title = f"{data}: {rate} in % ({goal}), Wilson 95 % below; eps: {norm}, {unit}"
                _print_whole(console, _rates(chosen, rate, title))


def _rates(part: pd.DataFrame, rate: str, title: str) -> Table:
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("model", "attack", "n"):
        grid.add_column(name, justify="right" if name == "n" else "left", no_wrap=True)
    sweep = sorted(part["eps"].unique())
    for eps in sweep:
        grid.add_column(f"{eps:g}", justify="right", no_wrap=True)
    for (model, attack), line in part.groupby(["model", "attack"], sort=False):
        by_eps = line.set_index("eps")
        cells = [_share(by_eps.loc[eps], rate) if eps in by_eps.index else "" for eps in sweep]
        grid.add_row(escape(str(model)), escape(str(attack)), str(line["n"].iloc[0]), *cells)
    return grid


def _print_whole(console: Console, grid: Table) -> None:
    """Print a table without cutting numbers off: what is wider than the terminal is left to it to wrap."""
    needed = Measurement.get(console, console.options.update(max_width=1000), grid).maximum
    Console(file=console.file, width=max(needed, console.width), emoji=False).print(grid)


def _share(line: pd.Series, rate: str) -> str:
    low, high = 100 * line[f"{rate}_low"], 100 * line[f"{rate}_high"]
    return f"{100 * line[rate]:.1f}\n[dim]{low:.0f}-{high:.0f}[/dim]"


def show_violations(console: Console, counts: pd.DataFrame) -> None:
    """Print which attack broke which rule how often; these rows count as not fooled."""
    for line in counts.itertuples():
        text = (
            f"{line.attack} on {line.model}: {line.rows} rows are invalid ({line.violation}) and count as not fooled."
        )
        console.print(f"[yellow]warning[/]: {escape(text)}", soft_wrap=True)


def show_findings(console: Console, findings: Sequence[str]) -> None:
    """Print in words which model is more robust than which (McNemar's test, corrected by Holm)."""
    for text in findings:
        console.print(text, soft_wrap=True, highlight=False, markup=False)


def show_files(console: Console, files: Sequence[Path]) -> None:
    """Print the paths of what was written."""
    console.print("Written:")
    for path in files:
        console.print(f"  {path}", soft_wrap=True, highlight=False)


def show_verdicts(console: Console, verdicts: pd.DataFrame) -> None:
    """Print the verdicts of a run, a line each."""
    if verdicts.empty:
        return
    title = "Can it be trusted? Robust accuracy in %, by the textbook attack and after the remedies"
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (
        "data",
        "model",
        "diagnostic",
        "eps",
        "n",
        "clean",
        "naive",
        "corrected",
        "verdict",
        "flagged (!: proof)",
    ):
        grid.add_column(name, justify="right" if name in ("eps", "n", "clean", "naive", "corrected") else "left")
    for line in verdicts.to_dict("records"):
        shares = ["" if pd.isna(line[name]) else f"{100 * line[name]:.1f}" for name in ("clean", "naive", "corrected")]
        names = (escape(str(line[name])) for name in ("data", "model", "diagnostic"))
        status = f"[{STATUS_COLOURS[line['status']]}]{line['status']}[/]"
        grid.add_row(*names, f"{line['eps']:g}", str(line["n"]), *shares, status, escape(line["flagged"]))
    _print_whole(console, grid)


STATUS_COLOURS = {"trusted": "green", "suspicious": "yellow", "masked": "red"}


def show_verdict(console: Console, summary: str, checks: pd.DataFrame) -> None:
    """Print what every check saw, what to do about what was flagged, and the verdict."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("check", "flag", "what was seen", "what to do"):
        grid.add_column(name, no_wrap=name in ("check", "flag"))
    for line in checks.itertuples():
        flag = "[red]proof[/]" if line.proof else "[yellow]sign[/]" if line.flagged else ""
        remedy = str(line.remedy) if line.flagged else ""
        grid.add_row(escape(str(line.check)), flag, escape(str(line.words)), escape(remedy))
    console.print(grid)
    console.print(summary, soft_wrap=True, highlight=False, markup=False)
