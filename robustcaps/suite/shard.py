"""Shards: ranges of the samples of cells, the units of work that engines execute and that parts of a run share."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from robustcaps.errors import UserError
from robustcaps.suite.cell import Cell, DiagnosticTask
from robustcaps.utils.spans import Span, span_id, split_span

MAX_SHARD_PASSES = 20_000
"""About how many forward passes of one image a shard takes at most: seconds to a few minutes on one core."""


@dataclass(frozen=True)
class Shard:
    """A range of the samples of a cell, or a whole cell."""

    cell: Cell
    samples: Span | None = None
    """None stands for all samples; the rows are then those of the cell."""

    @property
    def id(self) -> str:
        """The name under which its rows are stored."""
        return self.cell.id if self.samples is None else span_id(self.cell.id, self.samples)

    @property
    def label(self) -> str:
        """Its name in messages."""
        if self.samples is None:
            return self.cell.label
        return f"{self.cell.label}, samples {self.samples.start} to {self.samples.stop - 1}"

    @property
    def names(self) -> dict[str, str]:
        """The columns that only name things: those of its cell."""
        return self.cell.names

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decided its rows: the settings of its cell."""
        return self.cell.settings

    @property
    def work(self) -> float:
        """About how many forward passes of one image it takes at most."""
        count = self.cell.task.sample_count
        if self.samples is None or count is None:
            return self.cell.work
        return self.cell.work * self.samples.size / count


def split_cell(cell: Cell, shard_size: int | None = None) -> list[Shard]:
    """Return the shards of a cell, in order; a cell that must not be split is one shard.

    Args:
        cell: The cell.
        shard_size: Samples per shard, rounded up to whole batches; by default as many as `MAX_SHARD_PASSES` allows.
            Whole batches make every batch the same as without shards, to the last bit.
    """
    task = cell.task
    if isinstance(task, DiagnosticTask) or task.sample_count is None:
        return [Shard(cell)]
    if shard_size is None:
        batches = int(MAX_SHARD_PASSES * task.sample_count / max(cell.work, 1.0)) // task.batch_size
    else:
        batches = math.ceil(shard_size / task.batch_size)
    spans = split_span(Span(0, task.sample_count), max(1, batches) * task.batch_size)
    return [Shard(cell)] if len(spans) == 1 else [Shard(cell, span) for span in spans]


@dataclass(frozen=True)
class Part:
    """One of several parts of a run that are computed apart from each other, as by the jobs of a batch system."""

    number: int
    """From 1."""
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part that a text such as '3/8' names."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and len(text) < 20):
            raise UserError(f"--part {text[:20]!r}: must be like 3/8: the third of eight parts.")
        if not 1 <= int(number) <= int(count):
            raise UserError(f"--part {text}: the first number must be from 1 to {int(count)}.")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def select_part(shards: Sequence[Shard], part: Part) -> list[Shard]:
    """Return the shards of a part; every part gets about the same share of the work of every model and dataset.

    Parts need not know how long a model takes, and all of them divide the same shards in the same way.
    """
    whole = [0.0] * part.count
    by_model: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * part.count)
    chosen: set[int] = set()
    for position in _largest_first(shards):
        shard = shards[position]
        loads = by_model[shard.cell.model.label, shard.cell.data.label]
        _, _, lightest = min(zip(loads, whole, range(part.count), strict=True))
        loads[lightest] += shard.work
        whole[lightest] += shard.work
        if lightest == part.number - 1:
            chosen.add(position)
    return [shards[position] for position in sorted(chosen)]


def _largest_first(shards: Sequence[Shard]) -> Iterable[int]:
    return sorted(range(len(shards)), key=lambda position: -shards[position].work)
