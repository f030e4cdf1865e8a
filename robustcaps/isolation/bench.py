"""Where a worker carries out its jobs: in its own process, with models and data kept for the next one."""

from __future__ import annotations

from io import FileIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robustcaps.errors import UserError
from robustcaps.isolation.words import News, news_line, read_job
from robustcaps.outcome import carry_out
from robustcaps.plan import Cell
from robustcaps.registry import ATTACKS, DATASETS, MODELS, Registry
from robustcaps.workshop import Setting, Workshop


class Bench:
    """Carries out one job after another and tells how it goes."""

    def __init__(self, told: FileIO) -> None:
        self.told = told
        self.workshops: dict[Setting, Workshop] = {}

    def tell(self, news: News) -> None:
        """Say a line to the run."""
        self.told.write(news_line(news))

    def carry_out(self, line: bytes) -> News:
        """Carry out a job, write its rows, and return how it ended."""
        job = read_job(line)
        if job.setting not in self.workshops:
            self.workshops[job.setting] = Workshop(job.setting)
        if not _known(job.cell):
            return News("unknown")
        workshop = self.workshops[job.setting]
        try:
            workshop.attack(job.cell.attack)
        except UserError:  # an attack inside it is known to that script alone: options were checked when planning
            return News("unknown")
        outcome = carry_out(job.cell, workshop, self._moved, ready=lambda: self.tell(News("ready")))
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
