"""Progress bars of runs, trainings and downloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
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

from robustcaps import training
from robustcaps.cli.escaping import escape
from robustcaps.cli.rendering import failure_line
from robustcaps.data import download
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import RunProgress
from robustcaps.suite.cell import Cell


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


class RunBars(_Bars, RunProgress):
    """Progress of a run: a bar for the whole, one for each cell at work, a line for each that ended."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.tasks: dict[str, TaskID] = {}
        self.overall: TaskID | None = None
        self.done = 0.0
        """The work of the cells that have ended."""
        self.at_work: dict[str, float] = {}
        """The work done of each cell that has started."""
        self.cells = (0, 0)

    @property
    def training(self) -> TrainBars:
        """The progress of the trainings that come before the cells, with its bars among these."""
        return TrainBars(self.console, self.bars)

    def data_prepared(self, done: int, total: int) -> None:
        self.loading(done, total)

    def counting(self, description: str) -> Callable[[int, int], None]:
        """Return a callback that shows (done, total) as one bar."""
        task = self.bars.add_task(description)
        return lambda done, total: self.bars.update(task, completed=done, total=total)

    def suite_started(self, name: str, number: int, count: int) -> None:
        self.console.rule(f"{escape(name)} ({number} of {count})", align="left")

    def run_started(self, cells: Sequence[Cell], finished: Sequence[Cell]) -> None:
        self.cells, self.done, self.at_work = (0, len(cells)), 0.0, {}
        if self.overall is not None:
            self.bars.remove_task(self.overall)
            self.overall = None
        if finished:
            self.console.print(f"{len(finished)} of {len(cells) + len(finished)} cells are finished already.")
        if cells:
            self.overall = self.bars.add_task("all cells", total=sum(cell.work for cell in cells))

    def cell_damaged(self, cell: Cell, problem: str) -> None:
        text = escape(f"{cell.label}: {problem} It is computed again.")
        self.console.print(f"[yellow]warning[/]: {text}", soft_wrap=True, highlight=False)

    def cell_started(self, cell: Cell) -> None:
        self.tasks[cell.id] = self.bars.add_task(cell.label, total=None)

    def cell_advanced(self, cell: Cell, done: int, total: int) -> None:
        self.bars.update(self.tasks[cell.id], completed=done, total=total)
        self.at_work[cell.id] = cell.work * done / total
        self._update_overall()

    def cell_ended(self, outcome: Outcome) -> None:
        cell = outcome.cell
        self.part_ended(cell)
        count = f"[{self.cells[0]}/{self.cells[1]}]"
        line = failure_line(outcome) if outcome.rows is None else f"{escape(cell.label)}: {outcome.seconds:.1f} s"
        self.console.print(f"{escape(count)} {line}", soft_wrap=True, highlight=False)
        if outcome.note:
            self.console.print(f"[yellow]warning[/]: {escape(f'{cell.label} {outcome.note}.')}", soft_wrap=True)

    def part_ended(self, cell: Cell) -> None:
        if cell.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(cell.id))
        self.at_work.pop(cell.id, None)
        self.done += cell.work
        self.cells = (self.cells[0] + 1, self.cells[1])
        self._update_overall()

    def engine_noted(self, message: str) -> None:
        self.console.print(escape(message), soft_wrap=True, highlight=False)

    def _update_overall(self) -> None:
        if self.overall is not None:
            self.bars.update(self.overall, completed=self.done + sum(self.at_work.values()))


EPOCH_METRICS = ("loss", "train_accuracy", "validation_accuracy", "robust_accuracy", "lr", "seconds")
"""Columns of the training log that the line of an epoch shows."""


class TrainBars(_Bars, training.TrainingProgress):
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
        known = {name: metrics[name] for name in EPOCH_METRICS if metrics.get(name) is not None}
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


class DownloadBars(_Bars, download.DownloadProgress):
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

    def advanced(self, name: str, done: int, total: int | None) -> None:
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
