"""The server side of the worker process: executes jobs and keeps models and data for the next one."""

from __future__ import annotations

from io import FileIO

import pyarrow as pa
import pyarrow.parquet as pq

from robustcaps.errors import UserError
from robustcaps.execution.execute_cell import execute_cell
from robustcaps.execution.isolation.protocol import JobUpdate, decode_job, encode_update
from robustcaps.registry import DATASETS, MODELS
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import Resolver, RuntimeConfig


class JobServer:
    """Executes jobs one after another and reports their state."""

    def __init__(self, updates: FileIO) -> None:
        self.updates = updates
        self.resolvers: dict[RuntimeConfig, Resolver] = {}

    def send(self, update: JobUpdate) -> None:
        """Send an update to the run."""
        self.updates.write(encode_update(update))

    def execute(self, line: bytes) -> JobUpdate:
        """Execute a job, write its rows, and return its final update."""
        job = decode_job(line)
        if job.config not in self.resolvers:
            self.resolvers[job.config] = Resolver(job.config)
        resolver = self.resolvers[job.config]
        if not _is_registered(job.cell, resolver):
            return JobUpdate("unregistered")
        outcome = execute_cell(job.cell, resolver, self._report_progress, ready=lambda: self.send(JobUpdate("ready")))
        if outcome.rows is None:
            return JobUpdate("failed", seconds=outcome.seconds, violation=outcome.violation, trace=outcome.trace)
        pq.write_table(pa.Table.from_pandas(outcome.rows, preserve_index=False), job.rows_path)
        return JobUpdate("finished", seconds=outcome.seconds, note=outcome.note)

    def _report_progress(self, done: int, total: int) -> None:
        self.send(JobUpdate("progress", done=done, total=total))


def _is_registered(cell: Cell, resolver: Resolver) -> bool:
    """Return whether all names of a cell are registered here, and not only in the script that started the run."""
    try:
        DATASETS.entry(cell.data.use)
        for spec in (cell.model, *cell.task.surrogates.values()):
            MODELS.entry(spec.use.partition(":")[0])
    except UserError:
        return False
    return cell.task.is_known(resolver)
