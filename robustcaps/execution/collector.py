"""The collector: what happens to shards becomes what happens to cells, in the store and for the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from robustcaps.execution.engines import Engine
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.pending import PendingWork
from robustcaps.execution.run_progress import RunProgress, ShardProgress
from robustcaps.execution.shard_store import ShardStore
from robustcaps.execution.store import DamagedCell, Store
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.shard import Shard
from robustcaps.utils.spans import Span, subtract_spans


@dataclass
class CellState:
    """How far a cell has come."""

    cell: Cell
    finished: list[Span]
    """The spans of samples whose rows are stored."""
    expected: int
    """How many shards this run has yet to finish."""
    is_started: bool = False
    has_ended: bool = False
    steps: dict[str, int] = field(default_factory=dict)
    """The steps done of the shards at work."""
    note: str = ""

    def advance(self, total: int) -> tuple[int, int]:
        """Return the steps done and all steps of the cell; `total` are those of the shard at work."""
        count, rows = self.cell.task.sample_count, self.cell.task.row_count
        if count is None or rows is None:
            return sum(self.steps.values()), total
        return sum(self.steps.values()) + sum(span.size for span in self.finished) * rows // count, rows

    @property
    def is_complete(self) -> bool:
        """Whether the rows of all samples are stored."""
        return not subtract_spans(Span(0, self.cell.task.sample_count or 0), self.finished)


class Collector(ShardProgress):
    """Stores the rows of shards, joins those of complete cells, and reports the progress of cells."""

    def __init__(self, store: Store, work: PendingWork, progress: RunProgress) -> None:
        self.store = store
        self.shard_store = ShardStore(store.folder)
        self.progress = progress
        expected = Counter(shard.cell.id for shard in work.shards)
        self.cells = {cell.id: CellState(cell, list(work.spans[cell.id]), expected[cell.id]) for cell in work.cells}

    def run(self, shards: Iterable[Shard], engine: Engine, resolver: Resolver) -> Iterator[Outcome]:
        """Execute the shards of the work in this order; yield the outcomes of its cells."""
        for state in self.cells.values():
            if not state.expected and state.is_complete:  # a run was killed before it joined them
                yield self._end(state, *self._join(state))
        for outcome in engine(self._queue(shards), resolver, self):
            ended = self._add(outcome)
            if ended is not None:
                yield ended

    def _queue(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        """Yield the shards to execute, one by one as the engine has room; those of failed cells are left out."""
        for shard in shards:
            if not self.cells[shard.cell.id].has_ended:
                yield shard

    def noted(self, message: str) -> None:
        self.progress.engine_noted(message)

    def started(self, shard: Shard) -> None:
        state = self.cells[shard.cell.id]
        if not state.is_started:
            state.is_started = True
            self.progress.cell_started(shard.cell)

    def advanced(self, shard: Shard, done: int, total: int) -> None:
        state = self.cells[shard.cell.id]
        if not state.has_ended:
            state.steps[shard.id] = done
            self.progress.cell_advanced(shard.cell, *state.advance(total))

    def _add(self, outcome: Outcome) -> Outcome | None:
        """Store what an engine has executed; return the outcome of its cell once that is known."""
        state = self.cells[outcome.cell.id]
        state.steps.pop(outcome.shard.id, None)
        state.expected -= 1
        if outcome.rows is not None and outcome.samples is not None:
            self.shard_store.save(outcome.shard, outcome.rows, outcome.seconds)
            state.finished.append(outcome.samples)
            state.note = outcome.note or state.note
            if not state.is_complete:
                if not state.expected and not state.has_ended:
                    self.progress.part_ended(state.cell)
                return None
            return None if state.has_ended else self._end(state, *self._join(state))
        return None if state.has_ended else self._end(state, outcome)

    def _end(self, state: CellState, outcome: Outcome, joined: pa.Table | None = None) -> Outcome:
        """Store and report the outcome of a cell; its rows may have been joined from shards."""
        state.has_ended = True
        if outcome.rows is None:
            self.store.save_failure(outcome.cell, outcome.violation, outcome.trace)
        else:
            self.store.save(outcome.cell, outcome.rows if joined is None else joined, outcome.seconds)
            self.shard_store.remove(outcome.cell.id, state.finished)
        self.progress.cell_ended(outcome)
        return outcome

    def _join(self, state: CellState) -> tuple[Outcome, pa.Table | None]:
        """Return the outcome of a cell all of whose shards are stored, and its rows with the types they had there."""
        try:
            rows, seconds = self.shard_store.join(state.cell.id, state.finished)
        except DamagedCell as error:  # the next run computes what is damaged
            return Outcome(state.cell, 0.0, violation="raised", trace=str(error)), None
        return Outcome(state.cell, seconds, rows.to_pandas(), note=state.note), rows
