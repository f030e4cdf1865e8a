"""What is said between a run and its worker: lines of JSON; nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from robustcaps.suite.plan import Cell
from robustcaps.suite.resolve import RuntimeConfig

MARK = b"\0-- the cell has ended --\0"
"""Ends the output of each cell."""


@dataclass(frozen=True)
class Job:
    """A cell to carry out, how, and where its rows go (Parquet)."""

    config: RuntimeConfig
    cell: Cell
    rows: Path


@dataclass(frozen=True)
class News:
    """What a worker says of its job."""

    what: Literal["ready", "moved", "finished", "failed", "unknown"]
    """'unknown': the model, the data or the attack is not registered in the worker."""
    seconds: float = 0.0
    violation: str = ""
    trace: str = ""
    done: int = 0
    total: int = 0


_JOB, _NEWS = TypeAdapter(Job), TypeAdapter(News)


def job_line(job: Job) -> bytes:
    """Return a job as a line; of its cell only what an evaluation needs."""
    return _line(_JOB.dump_python(replace(job, cell=replace(job.cell, settings={}))))


def read_job(line: bytes) -> Job:
    """Return the job of a line."""
    return _JOB.validate_json(line)


def news_line(news: News) -> bytes:
    """Return news as a line."""
    return _line(_NEWS.dump_python(news))


def read_news(line: bytes) -> News:
    """Return the news of a line; a ValidationError if it is none."""
    return _NEWS.validate_json(line)


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, default=str).encode() + b"\n"
