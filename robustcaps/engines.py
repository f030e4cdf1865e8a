"""How cells are carried out: one after the other in this process, or by ray's workers. The rows are the same."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from robustcaps.data.base import Progress
from robustcaps.errors import UserError, did_you_mean
from robustcaps.evaluation import evaluate
from robustcaps.plan import Cell
from robustcaps.workshop import Setting, Workshop


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its rows, or the traceback of its failure."""

    cell: Cell
    seconds: float
    rows: pd.DataFrame | None = None
    trace: str = ""

    @property
    def reason(self) -> str:
        """The last line of the traceback."""
        return self.trace.strip().rpartition("\n")[2]


class Listener:
    """Hears how a run goes on; this one says nothing. The command line brings one with progress bars."""

    def data_prepared(self, done: int, total: int) -> None:
        """So many samples of a dataset are ready."""

    def run_started(self, cells: Sequence[Cell], finished: Sequence[Cell]) -> None:
        """The plan is made: cells to compute, and those that a former run finished."""

    def cell_started(self, cell: Cell) -> None:
        """A cell begins."""

    def cell_moved(self, cell: Cell, done: int) -> None:
        """So many rows of a cell are done."""

    def cell_ended(self, outcome: Outcome) -> None:
        """A cell is finished or has failed."""


Engine = Callable[[Sequence[Cell], Workshop, Listener], Iterator[Outcome]]


def carry_out(cell: Cell, workshop: Workshop, progress: Progress | None = None) -> Outcome:
    """Evaluate one cell; a failure becomes an outcome, not an exception, so that the other cells go on."""
    began = time.perf_counter()
    try:
        rows = evaluate(
            workshop.model(cell.model, cell.data),
            workshop.data(cell.data),
            workshop.attack(cell.attack),
            seed=cell.seed,
            batch_size=cell.batch_size,
            progress=progress,
        )
    except Exception:  # noqa: BLE001  whatever a plugin raises belongs to its cell
        return Outcome(cell, time.perf_counter() - began, trace=traceback.format_exc())
    return Outcome(cell, time.perf_counter() - began, rows)


def local(cells: Sequence[Cell], workshop: Workshop, listener: Listener) -> Iterator[Outcome]:
    """Carry out the cells one after the other in this process."""
    for cell in cells:
        listener.cell_started(cell)

        def moved(done: int, _: int, cell: Cell = cell) -> None:
            listener.cell_moved(cell, done)

        yield carry_out(cell, workshop, moved)


def ray(cells: Sequence[Cell], workshop: Workshop, _: Listener) -> Iterator[Outcome]:
    """Carry out the cells on ray's workers, as many at a time as there are; outcomes come as they are ready."""
    try:
        import ray as cluster  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise UserError("engine 'ray' needs ray: pip install 'robustcaps[ray]'.") from error
    started_here = not cluster.is_initialized()
    if started_here:
        cluster.init(include_dashboard=False, log_to_driver=False)
    try:
        task = cluster.remote(_on_worker)
        waiting = {task.remote(cell, workshop.setting): cell for cell in cells}
        while waiting:
            (ready,), _rest = cluster.wait(list(waiting), num_returns=1)
            yield _outcome(cluster, ready, waiting.pop(ready))
    finally:
        if started_here:
            cluster.shutdown()


def _outcome(cluster: Any, result: Any, cell: Cell) -> Outcome:
    """Fetch a result; a worker that died is a failure of its cell."""
    try:
        outcome: Outcome = cluster.get(result)
    except Exception:  # noqa: BLE001
        return Outcome(cell, 0.0, trace=traceback.format_exc())
    return outcome


_workshops: dict[Setting, Workshop] = {}


def _on_worker(cell: Cell, setting: Setting) -> Outcome:
    """Carry out a cell in a worker process, which keeps its models and data for the next one."""
    if setting not in _workshops:
        _workshops[setting] = Workshop(setting)
    return carry_out(cell, _workshops[setting])


ENGINES: dict[str, Engine] = {"local": local, "ray": ray}


def pick_engine(name: str) -> Engine:
    """Return the engine of that name."""
    if name not in ENGINES:
        raise UserError(f"unknown engine '{name}'. {did_you_mean(name, ENGINES)}")
    return ENGINES[name]
