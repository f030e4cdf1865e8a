"""The messages between a run and its worker process: one JSON document per line; nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import RuntimeConfig

END_OF_OUTPUT = b"\0-- the cell has ended --\0"
"""Written to the output stream after each job."""


@dataclass(frozen=True)
class Job:
    """A cell to evaluate and the Parquet file for its rows."""

    config: RuntimeConfig
    cell: Cell
    rows_path: Path


@dataclass(frozen=True)
class JobUpdate:
    """The state of a job, as the worker process reports it."""

    status: Literal["ready", "progress", "finished", "failed", "unregistered"]
    """'unregistered': the model, the data or the attack is not registered in the worker process."""
    seconds: float = 0.0
    violation: str = ""
    trace: str = ""
    done: int = 0
    total: int = 0
    note: str = ""


_JOB, _UPDATE = TypeAdapter(Job), TypeAdapter(JobUpdate)


def encode_job(job: Job) -> bytes:
    """Return a job as a line, without the settings of its cell, which an evaluation does not need."""
    return _encode_line(_JOB.dump_python(replace(job, cell=replace(job.cell, settings={}))))


def decode_job(line: bytes) -> Job:
    """Return the job of a line."""
    return _JOB.validate_json(line)


def encode_update(update: JobUpdate) -> bytes:
    """Return an update as a line."""
    return _encode_line(_UPDATE.dump_python(update))


def decode_update(line: bytes) -> JobUpdate:
    """Return the update of a line; raise a ValidationError if it is malformed."""
    return _UPDATE.validate_json(line)


def _encode_line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, default=str).encode() + b"\n"
