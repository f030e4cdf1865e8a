"""How cells are carried out: one after the other on this machine, or by ray's workers. The rows are the same."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from robustcaps.data.base import Progress
from robustcaps.errors import UserError, did_you_mean
from robustcaps.execution.execute_cell import Outcome, clip, execute_cell
from robustcaps.execution.isolation.worker import Worker, time_limit
from robustcaps.suite.plan import Cell, Work
from robustcaps.suite.resolve import Resolver, RuntimeConfig


class Listener:
    """Hears how a run goes on; this one says nothing. The command line brings one with progress bars."""

    def suite_started(self, name: str, number: int, count: int) -> None:
        """The suite with this number begins, of so many in a collection."""

    def data_prepared(self, done: int, total: int) -> None:
        """So many samples of a dataset are ready."""

    def run_started(self, cells: Sequence[Work], finished: Sequence[Work]) -> None:
        """The plan is made: cells to compute, and those that a former run finished."""

    def cell_started(self, cell: Work) -> None:
        """A cell begins."""

    def cell_moved(self, cell: Work, done: int) -> None:
        """So many rows of a cell are done."""

    def cell_ended(self, outcome: Outcome) -> None:
        """A cell is finished or has failed."""


Engine = Callable[[Sequence[Work], Resolver, Listener], Iterator[Outcome]]


def local(cells: Sequence[Work], resolver: Resolver, listener: Listener) -> Iterator[Outcome]:
    """Carry out the cells one after the other: in this process, those of plugins in a worker."""
    with Worker(resolver.config) as worker:
        for cell in cells:
            listener.cell_started(cell)

            def moved(done: int, _: int, cell: Work = cell) -> None:
                listener.cell_moved(cell, done)

            yield _execute(cell, resolver, worker, moved)


def _execute(cell: Work, resolver: Resolver, worker: Worker, progress: Progress | None = None) -> Outcome:
    """Carry out a cell where it can be stopped, if it might have to be."""
    outcome = None
    if isinstance(cell, Cell) and (limit := time_limit(cell)) is not None:
        outcome = worker.execute_cell(cell, limit, progress)
    return outcome or execute_cell(cell, resolver, progress)


def ray(cells: Sequence[Work], resolver: Resolver, _: Listener) -> Iterator[Outcome]:
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
        waiting = {task.remote(cell, resolver.config): cell for cell in cells}
        while waiting:
            (ready,), _rest = cluster.wait(list(waiting), num_returns=1)
            yield _outcome(cluster, ready, waiting.pop(ready))
    finally:
        if started_here:
            cluster.shutdown()


def _outcome(cluster: Any, result: Any, cell: Work) -> Outcome:
    """Fetch a result; a worker that died is a failure of its cell."""
    try:
        outcome: Outcome = cluster.get(result)
    except Exception:  # noqa: BLE001
        return Outcome(cell, 0.0, violation="exited", trace=clip(traceback.format_exc()))
    return outcome


_benches: dict[RuntimeConfig, tuple[Resolver, Worker]] = {}


def _on_worker(cell: Work, config: RuntimeConfig) -> Outcome:
    """Carry out a cell in a process of ray's, which keeps its models, data and own worker for the next one."""
    if config not in _benches:
        _benches[config] = Resolver(config), Worker(config)
    return _execute(cell, *_benches[config])


ENGINES: dict[str, Engine] = {"local": local, "ray": ray}


def pick_engine(name: str) -> Engine:
    """Return the engine of that name."""
    if name not in ENGINES:
        raise UserError(f"unknown engine '{name}'. {did_you_mean(name, ENGINES)}")
    return ENGINES[name]
