"""Where a worker carries out its jobs: in its own process, with models and data kept for the next one."""

from __future__ import annotations

from io import FileIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robustcaps.errors import UserError
from robustcaps.execution.execute_cell import execute_cell
from robustcaps.execution.isolation.protocol import News, news_line, read_job
from robustcaps.registry import ATTACKS, DATASETS, MODELS, Registry
from robustcaps.suite.plan import Cell
from robustcaps.suite.resolve import Resolver, RuntimeConfig


class Bench:
    """Carries out one job after another and tells how it goes."""

    def __init__(self, told: FileIO) -> None:
        self.told = told
        self.resolvers: dict[RuntimeConfig, Resolver] = {}

    def tell(self, news: News) -> None:
        """Say a line to the run."""
        self.told.write(news_line(news))

    def execute_cell(self, line: bytes) -> News:
        """Carry out a job, write its rows, and return how it ended."""
        job = read_job(line)
        if job.config not in self.resolvers:
            self.resolvers[job.config] = Resolver(job.config)
        if not _known(job.cell):
            return News("unknown")
        resolver = self.resolvers[job.config]
        try:
            resolver.attack(job.cell.attack)
        except UserError:  # an attack inside it is known to that script alone: options were checked when planning
            return News("unknown")
        outcome = execute_cell(job.cell, resolver, self._moved, ready=lambda: self.tell(News("ready")))
        if outcome.rows is None:
            return News("failed", seconds=outcome.seconds, violation=outcome.violation, trace=outcome.trace)
        pq.write_table(pa.Table.from_pandas(outcome.rows, preserve_index=False), job.rows)
        return News("finished", seconds=outcome.seconds)

    def _moved(self, done: int, total: int) -> None:
        self.tell(News("moved", done=done, total=total))


def _known(cell: Cell) -> bool:
    """Return whether all that a cell names is registered here too, not only in the script that started the run."""
    models = [(MODELS, spec.use.partition(":")[0]) for spec in (cell.model, *cell.surrogates.values())]
    wanted: list[tuple[Registry[Any], str]] = [*models, (DATASETS, cell.data.use), (ATTACKS, cell.attack.use)]
    try:
        for registry, name in wanted:
            registry.entry(name)
    except UserError:
        return False
    return True
