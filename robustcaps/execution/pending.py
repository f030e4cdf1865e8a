"""What a run has yet to compute: the cells and shards of its plan without those that a former run has stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from robustcaps.execution.run_progress import RunProgress
from robustcaps.execution.shard_store import ShardStore
from robustcaps.execution.store import DamagedCell, Store
from robustcaps.suite.cell import Cell
from robustcaps.suite.shard import Part, Shard, select_part, split_cell
from robustcaps.utils.spans import Span, subtract_spans


@dataclass(frozen=True)
class PendingWork:
    """The work of a run, and what is stored already."""

    finished: set[str]
    """The ids of the cells whose rows are stored."""
    cells: list[Cell]
    """The cells to work on, each once."""
    shards: list[Shard]
    """What is to be executed of them."""
    spans: dict[str, list[Span]]
    """By the ids of these cells: the samples whose rows are stored."""


def find_pending_work(
    cells: Sequence[Cell], store: Store, progress: RunProgress, *, shard_size: int | None, part: Part | None
) -> PendingWork:
    """Return what is left of a plan, or of a part of it; what is damaged is reported and left to be computed."""
    unique = list({cell.id: cell for cell in cells}.values())
    finished = {cell.id for cell in unique if _is_finished(cell, store, progress)}
    shard_store = ShardStore(store.folder)
    stored = shard_store.list_spans()
    shards = [shard for cell in unique for shard in split_cell(cell, shard_size)]
    if part is not None:  # every part must divide the same shards, whatever is finished
        shards = select_part(shards, part)
    for cell_id in stored.keys() & finished:  # a run may be killed after it has joined them
        shard_store.remove(cell_id, stored[cell_id])
    shards = [shard for shard in shards if shard.cell.id not in finished]
    missing = {shard.cell.id: shard.cell for shard in shards}
    spans = {}
    for cell in missing.values():
        spans[cell.id], damages = shard_store.verify(cell.id, stored.get(cell.id, ()))
        for damage in damages:
            progress.cell_damaged(cell, str(damage))
    left = [rest for shard in shards for rest in _without(shard, spans[shard.cell.id])]
    return PendingWork(finished, list(missing.values()), left, spans)


def _is_finished(cell: Cell, store: Store, progress: RunProgress) -> bool:
    """Return whether the rows of a cell are stored and intact."""
    try:
        return store.has(cell)
    except DamagedCell as error:
        progress.cell_damaged(cell, str(error))
        return False


def _without(shard: Shard, spans: Sequence[Span]) -> list[Shard]:
    """Return what is left of a shard beside some spans, which may come from a run with another shard size."""
    count = shard.cell.task.sample_count
    if count is None or not spans:
        return [shard]
    whole = shard.samples or Span(0, count)
    return [replace(shard, samples=rest) for rest in subtract_spans(whole, spans)]
