"""Callbacks that report the progress of a run, and those that report the progress of shards to it."""

from __future__ import annotations

from collections.abc import Sequence

from robustcaps.execution.execute_cell import Outcome
from robustcaps.suite.cell import Cell
from robustcaps.suite.shard import Shard


class RunProgress:
    """Callbacks that report the progress of a run; these do nothing. The command line shows progress bars."""

    def suite_started(self, name: str, number: int, count: int) -> None:
        """Suite `number` of `count` in a collection starts."""

    def data_prepared(self, done: int, total: int) -> None:
        """`done` of `total` samples of a dataset are ready."""

    def run_started(self, cells: Sequence[Cell], finished: Sequence[Cell]) -> None:
        """The plan is made: cells to compute, and those finished by a former run."""

    def cell_damaged(self, cell: Cell, problem: str) -> None:
        """The stored rows of a cell, or of a shard of it, cannot be trusted; they will be computed again."""

    def engine_noted(self, message: str) -> None:
        """Something happened to the engine that a user should know: a worker was lost, a node has joined."""

    def cell_started(self, cell: Cell) -> None:
        """A cell starts."""

    def cell_advanced(self, cell: Cell, done: int, total: int) -> None:
        """`done` of `total` steps of a cell are finished."""

    def cell_ended(self, outcome: Outcome) -> None:
        """A cell is finished or has failed."""

    def part_ended(self, cell: Cell) -> None:
        """What this part of a run computes of a cell is finished; the other parts compute the rest."""


class ShardProgress:
    """Callbacks by which an engine reports the progress of shards; these do nothing."""

    def noted(self, message: str) -> None:
        """Something happened to the engine that a user should know."""

    def started(self, shard: Shard) -> None:
        """A shard starts."""

    def advanced(self, shard: Shard, done: int, total: int) -> None:
        """`done` of `total` steps of a shard are finished."""
