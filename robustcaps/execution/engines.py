"""Engines: they execute cells one after the other on this machine, or on ray's workers. The rows are the same."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from robustcaps.data.base import Progress
from robustcaps.errors import UserError, did_you_mean
from robustcaps.execution.execute_cell import Outcome, clip, execute_cell
from robustcaps.execution.isolation.worker import Worker
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import Resolver, RuntimeConfig


class RunProgress:
    """Callbacks that report the progress of a run; these do nothing. The command line shows progress bars."""

    def suite_started(self, name: str, number: int, count: int) -> None:
        """Suite `number` of `count` in a collection starts."""

    def data_prepared(self, done: int, total: int) -> None:
        """`done` of `total` samples of a dataset are ready."""

    def run_started(self, cells: Sequence[Cell], finished: Sequence[Cell]) -> None:
        """The plan is made: cells to compute, and those finished by a former run."""

    def cell_damaged(self, cell: Cell, problem: str) -> None:
        """The stored rows of a cell cannot be trusted; it will be computed again."""

    def cell_started(self, cell: Cell) -> None:
        """A cell starts."""

    def cell_advanced(self, cell: Cell, done: int, total: int) -> None:
        """`done` of `total` steps of a cell are finished."""

    def cell_ended(self, outcome: Outcome) -> None:
        """A cell is finished or has failed."""


Engine = Callable[[Sequence[Cell], Resolver, RunProgress], Iterator[Outcome]]


def local(cells: Sequence[Cell], resolver: Resolver, run_progress: RunProgress) -> Iterator[Outcome]:
    """Execute the cells one after the other: in this process, those with a time limit in a worker process."""
    with Worker(resolver.config) as worker:
        for cell in cells:
            run_progress.cell_started(cell)

            def advanced(done: int, total: int, cell: Cell = cell) -> None:
                run_progress.cell_advanced(cell, done, total)

            yield _execute(cell, resolver, worker, advanced)


def _execute(cell: Cell, resolver: Resolver, worker: Worker, progress: Progress | None = None) -> Outcome:
    """Execute a cell, in the worker process if it has a time limit."""
    outcome = None
    if (limit := cell.task.time_limit) is not None:
        outcome = worker.execute_cell(cell, limit, progress)
    return outcome or execute_cell(cell, resolver, progress)


def ray(cells: Sequence[Cell], resolver: Resolver, _: RunProgress) -> Iterator[Outcome]:
    """Execute the cells on ray's workers, as many at a time as there are; outcomes come as they are ready."""
    try:
        import ray as cluster  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise UserError("engine 'ray' needs ray: pip install 'robustcaps[ray]'.") from error
    started_here = not cluster.is_initialized()
    if started_here:
        cluster.init(include_dashboard=False, log_to_driver=False)
    try:
        task = cluster.remote(_execute_on_worker)
        waiting = {task.remote(cell, resolver.config): cell for cell in cells}
        while waiting:
            (ready,), _rest = cluster.wait(list(waiting), num_returns=1)
            yield _fetch(cluster, ready, waiting.pop(ready))
    finally:
        if started_here:
            cluster.shutdown()


def _fetch(cluster: Any, result: Any, cell: Cell) -> Outcome:
    """Return an outcome; a worker that died is a failure of its cell."""
    try:
        outcome: Outcome = cluster.get(result)
    except Exception:  # noqa: BLE001
        return Outcome(cell, 0.0, violation="exited", trace=clip(traceback.format_exc()))
    return outcome


_resolvers: dict[RuntimeConfig, tuple[Resolver, Worker]] = {}


def _execute_on_worker(cell: Cell, config: RuntimeConfig) -> Outcome:
    """Execute a cell in a process of ray's, which keeps its models, data and worker process for the next one."""
    if config not in _resolvers:
        _resolvers[config] = Resolver(config), Worker(config)
    return _execute(cell, *_resolvers[config])


ENGINES: dict[str, Engine] = {"local": local, "ray": ray}


def pick_engine(name: str) -> Engine:
    """Return the engine of that name."""
    if name not in ENGINES:
        raise UserError(f"unknown engine '{name}'. {did_you_mean(name, ENGINES)}")
    return ENGINES[name]
