"""Merging of the parts of a run that were computed apart from each other: verified, and refused where they conflict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from robustcaps.analysis.records import RUN_RECORD, read_run_record
from robustcaps.errors import UserError
from robustcaps.execution.shard_store import ShardStore, StoredShard, join_rows
from robustcaps.execution.store import DamagedCell, Store
from robustcaps.utils.files import json_checksum, write_atomically
from robustcaps.utils.spans import Span, subtract_spans

PART_FIELDS = ("part", "command", "commit", "engine", "device", "versions", "machine", "finished_at", "timings")
"""What the record of a merged run keeps of each part."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell as run.json lists it."""

    id: str
    label: str
    names: dict[str, str]
    settings: dict[str, Any]
    samples: int | None
    """Number of its samples if shards may divide them."""


@dataclass(frozen=True)
class Piece:
    """Stored rows of a cell: of all its samples, or of a span of them."""

    folder: Path
    rows: pa.Table
    span: Span | None


class PartFolder:
    """The folder of a part: its record, and its cells and shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = read_run_record(folder)
        self.store, self.shard_store = Store(folder), ShardStore(folder)
        self.spans = self.shard_store.list_spans()
        self.statuses = {cell["id"]: cell for cell in self.record["cells"]}

    def cells(self) -> list[PlannedCell]:
        """Return the cells of the plan."""
        return [
            PlannedCell(cell["id"], cell["label"], cell["names"], cell.get("settings", {}), cell["samples"])
            for cell in self.record["cells"]
        ]

    def pieces(self, cell: PlannedCell, damages: list[str]) -> Iterator[Piece]:
        """Yield what is stored of a cell; what is damaged is noted instead."""
        try:
            rows = self.store.read_stored(cell)
            if rows is not None:
                yield Piece(self.folder, rows, None)
        except DamagedCell as error:
            damages.append(f"{cell.label}: {error}")
        for span in self.spans.get(cell.id, ()):
            try:
                yield Piece(self.folder, self.shard_store.read(StoredShard(cell.id, span)), span)
            except DamagedCell as error:
                damages.append(f"{cell.label}: {error}")


class Merge:
    """A merge of the folders of parts, and of what is in `out` already, into `out`; verified before it is written.

    Raises:
        UserError: The parts do not belong to one plan, or have different rows of one cell.
    """

    def __init__(self, out: Path, parts: Sequence[Path]) -> None:
        folders = list({folder.resolve(): folder for folder in parts if folder.resolve() != out.resolve()}.values())
        if (out / RUN_RECORD).exists():
            folders.insert(0, out)
        self.out = out
        self.sources = [PartFolder(folder) for folder in folders]
        for source in self.sources[1:]:
            _check_plan(self.sources[0], source)
        self.damages: list[str] = []
        self.cells = list({cell.id: cell for cell in self.sources[0].cells()}.values())
        for cell in self.cells:
            pieces = [piece for source in self.sources for piece in source.pieces(cell, self.damages)]
            _check_rows(cell, pieces)

    def write(self) -> list[str]:
        """Write the merged cells and run.json; return what is damaged in the parts."""
        Store(self.out).prepare()
        finished = {cell.id for cell in self.cells if _write_cell(cell, self.sources, self.out)}
        _write_record(self.out, self.sources, finished)
        return self.damages


def _check_plan(first: PartFolder, other: PartFolder) -> None:
    """Refuse a part whose cells are not those of the first one, and say what differs."""
    ours, theirs = ({cell.label: cell for cell in source.cells()} for source in (first, other))
    for label in [*ours, *theirs]:
        if label not in ours or label not in theirs:
            has_it, lacks_it = (first, other) if label in ours else (other, first)
            problem = f"'{label}' is planned in {has_it.folder} only, not in {lacks_it.folder}"
        elif ours[label].id != theirs[label].id:
            what = ", ".join(_differing_keys(ours[label].settings, theirs[label].settings))
            problem = f"'{label}' differs between {first.folder} and {other.folder} ({what or 'its settings'})"
        else:
            continue
        raise UserError(f"conflict: {problem}. Parts of a run have the same suite, weights, data and code.")


def _differing_keys(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]


def _check_rows(cell: PlannedCell, pieces: Sequence[Piece]) -> None:
    """Refuse two pieces with different rows of the same samples."""
    for one, other in combinations(pieces, 2):
        if not _agree(one, other):
            places = " and ".join(map(str, dict.fromkeys((one.folder, other.folder))))
            raise UserError(f"conflict: the rows of '{cell.label}' differ between {places}; remove one of the two.")


def _agree(one: Piece, other: Piece) -> bool:
    """Return whether two pieces have the same rows of the samples that they share."""
    spans = [span for span in (one.span, other.span) if span is not None]
    tables = [one.rows, other.rows]
    if spans:
        start, stop = max(span.start for span in spans), min(span.stop for span in spans)
        if start >= stop:
            return True
        tables = [
            table.filter(pc.and_(pc.greater_equal(table["index"], start), pc.less(table["index"], stop)))
            for table in tables
        ]
    plain = [table.replace_schema_metadata(None) for table in tables]
    try:
        schema = pa.unify_schemas([table.schema for table in plain], promote_options="permissive")
        left, right = (table.select(schema.names).cast(schema).to_pandas() for table in plain)
    except (pa.ArrowException, KeyError):
        return False
    return bool(left.equals(right))


def _write_cell(cell: PlannedCell, sources: Sequence[PartFolder], out: Path) -> bool:
    """Write a cell, or what there is of it, into the merged folder; return whether it is finished."""
    store, shard_store = Store(out), ShardStore(out)
    pieces = {source.folder: list(source.pieces(cell, [])) for source in sources}
    for folder, stored in pieces.items():
        if any(piece.span is None for piece in stored):
            if folder != out:
                store.copy(cell, Store(folder))
            shard_store.remove(cell.id, shard_store.list_spans().get(cell.id, ()))
            return True
    shards = {piece.span: (folder, piece) for folder, stored in pieces.items() for piece in stored if piece.span}
    if shards and cell.samples is not None and not subtract_spans(Span(0, cell.samples), shards):
        rows = join_rows([(span, piece.rows) for span, (_, piece) in shards.items()])
        taken = [ShardStore(folder).seconds(StoredShard(cell.id, span)) for span, (folder, _) in shards.items()]
        store.save(cell, rows, sum(taken))
        shard_store.remove(cell.id, shard_store.list_spans().get(cell.id, ()))
        return True
    for span, (folder, _) in shards.items():
        if folder != out:
            shard_store.copy(StoredShard(cell.id, span), ShardStore(folder))
    for source in sources:
        store.copy_failure(cell, source.store)
    return False


def _write_record(out: Path, sources: Sequence[PartFolder], finished: set[str]) -> None:
    """Write run.json of the merged run."""
    store, first = Store(out), sources[0].record
    parts = [source for source in sources if source.folder != out]
    words = ["robustcaps", "merge", str(out), *(str(source.folder) for source in parts)]
    record = {key: value for key, value in first.items() if key not in ("part", "checksum")}
    record |= {"command": shlex.join(words), "cells": [_cell_record(cell, store, finished) for cell in first["cells"]]}
    ends = [str(source.record["finished_at"] or "") for source in parts]
    record["finished_at"] = max(ends) if ends and all(ends) else None
    seconds = [(source.record.get("timings") or {}).get("run_seconds") or 0.0 for source in parts]
    record["timings"] = {"run_seconds": round(sum(seconds), 3)}
    record["merged"] = [{key: source.record.get(key) for key in PART_FIELDS} for source in parts]
    plain = json.loads(json.dumps(record, default=str))
    plain["checksum"] = json_checksum(plain)
    write_atomically(out / RUN_RECORD, json.dumps(plain, indent=2) + "\n")


def _cell_record(cell: Mapping[str, Any], store: Store, finished: set[str]) -> dict[str, Any]:
    """Return what the merged record says about a cell."""
    planned = PlannedCell(cell["id"], cell["label"], cell["names"], {}, None)
    violation = store.violation(planned)
    status = "finished" if planned.id in finished else "failed" if violation else "unfinished"
    seconds = store.seconds(planned) if planned.id in finished else None
    return {**cell, "status": status, "violation": violation, "seconds": seconds}
