"""The records of runs: run.json and collection.json, read once and checked for their shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from robustcaps.errors import UserError
from robustcaps.options import first_problem
from robustcaps.utils.files import json_checksum, read_json

RUN_RECORD, COLLECTION_RECORD = "run.json", "collection.json"
"""The files of a run and of a collection."""
ATTACK = "attack"
"""The kind of the cells that run attacks; all other kinds are diagnostics."""


class _Record(BaseModel):
    """A part of a record; what is not needed to show results is kept as it is."""

    model_config = ConfigDict(extra="allow")


class CellRecord(_Record):
    """A cell of a run."""

    id: str = Field(pattern=r"^[0-9A-Za-z]+$")
    names: dict[str, str]
    kind: str = ATTACK
    label: str = ""
    status: str = ""
    violation: str = ""
    samples: int | None = None
    """Number of its samples if shards may divide them."""


class ModelRecord(_Record):
    """A model of a run, as its card describes it."""

    label: str
    data: str
    name: str
    options: dict[str, Any]
    parameters: int
    n_test: int | None
    accuracy: float | None
    interval: tuple[float, float] | None
    """None of imported weights whose accuracy was not measured."""
    routing: dict[str, Any] | None = None


class SuiteRecord(_Record):
    """The suite of a run."""

    name: str = ""
    title: str = ""
    seeds: list[int] = [0]
    figures: dict[str, bool] = {}


class RunRecord(_Record):
    """What run.json says."""

    suite: SuiteRecord
    cells: list[CellRecord]
    models: list[ModelRecord] = []
    classes: dict[str, list[str]] = {}
    """The names of each dataset's classes."""
    command: str = ""
    commit: str | None = None
    finished_at: str | None = None
    versions: dict[str, str] = {}
    checksum: str | None = None
    """See `json_checksum`."""


class CollectionRecord(_Record):
    """What collection.json says."""

    name: str
    title: str
    suites: list[str]
    """Those that have been run."""
    planned: list[str] = []
    """All suites of the collection."""
    checksum: str | None = None
    """See `json_checksum`."""


def read_run_record(out: Path) -> dict[str, Any]:
    """Return run.json of an out folder, with the defaults of what it does not say.

    Its checksum must match; only a published folder, which has no cells, may lack one.
    """
    path = out / RUN_RECORD
    try:
        content = read_json(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file. Is {out} the out folder of `robustcaps run`?") from error
    record = _validated(RunRecord, content, path, "a run. Run the suite again to renew it.")
    _verify(record, content, path, "suite", is_published=not (out / "cells").exists())
    return record


def read_collection_record(out: Path) -> dict[str, Any]:
    """Return collection.json of an out folder; its checksum must match, as that of run.json."""
    path = out / COLLECTION_RECORD
    content = read_json(path)
    record = _validated(CollectionRecord, content, path, "a collection. Run the collection again to renew it.")
    for name in record["suites"]:
        if Path(name).name != name or name in {"", ".", ".."}:
            raise UserError(f"{path}: suites: '{name}' is not the name of a folder.")
    has_cells = any((out / name / "cells").exists() for name in record["suites"])
    _verify(record, content, path, "collection", is_published=not has_cells)
    return record


def _verify(record: dict[str, Any], content: dict[str, Any], path: Path, what: str, *, is_published: bool) -> None:
    """Refuse a record whose checksum does not match; only a published one may lack it."""
    if is_published and record["checksum"] is None:
        return
    if record["checksum"] != json_checksum(content):
        problem = "damaged: its checksum is missing or does not match"
        raise UserError(f"{path}: {problem}. Run the {what} again to renew it.")


def _validated(kind: type[BaseModel], content: object, path: Path, whose: str) -> dict[str, Any]:
    """Return a record with all of its fields; an error names the file and the place in it."""
    try:
        return kind.model_validate(content).model_dump()
    except ValidationError as error:
        raise UserError(f"{path}: not the record of {whose} ({first_problem(error)})") from error
