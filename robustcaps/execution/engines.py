"""Engines execute shards and yield their outcomes; the local one does so one by one, `cluster` on many machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from robustcaps.data.base import Progress
from robustcaps.execution.execute_cell import Outcome, execute_cell
from robustcaps.execution.isolation.worker import Worker
from robustcaps.execution.run_progress import ShardProgress
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.shard import Shard

Engine = Callable[[Iterable[Shard], Resolver, ShardProgress], Iterator[Outcome]]
"""Takes the next shard when it has room for it, and yields outcomes as they are ready."""


def local(shards: Iterable[Shard], resolver: Resolver, progress: ShardProgress) -> Iterator[Outcome]:
    """Execute the shards one after the other: in this process, those with a time limit in a worker process."""
    with Worker(resolver.config) as worker:
        for shard in shards:
            progress.started(shard)

            def advanced(done: int, total: int, shard: Shard = shard) -> None:
                progress.advanced(shard, done, total)

            yield execute_shard(shard, resolver, worker, advanced)


def execute_shard(shard: Shard, resolver: Resolver, worker: Worker, progress: Progress | None = None) -> Outcome:
    """Execute a shard, in the worker process if its cell has a time limit; such cells are not divided."""
    outcome = None
    if (limit := shard.cell.task.time_limit) is not None:
        outcome = worker.execute_cell(shard.cell, limit, progress)
    return outcome or execute_cell(shard.cell, resolver, progress, samples=shard.samples)
