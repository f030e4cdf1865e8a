"""Cells on disk: one Parquet file each, named by the cell's id, written whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from robustcaps.errors import UserError
from robustcaps.utils.files import write_atomically

META = b"robustcaps"
"""The key of the JSON in a file's metadata: the cell's settings, names and seconds."""


class Finished(Protocol):
    """What is asked of a cell to find its rows and to name them."""

    @property
    def id(self) -> str:
        """The name of its file."""

    @property
    def names(self) -> dict[str, str]:
        """The columns that only name things."""


class Computed(Finished, Protocol):
    """What is asked of a cell to keep it."""

    @property
    def label(self) -> str:
        """What messages call it."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decided its rows."""


@dataclass(frozen=True)
class Store:
    """A folder of finished and failed cells."""

    folder: Path

    @property
    def cells(self) -> Path:
        """Where the cells lie."""
        return self.folder / "cells"

    def prepare(self) -> None:
        """Make the folders, or say that they cannot be written."""
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            write_atomically(self.cells / ".writable", "")
            (self.cells / ".writable").unlink()
        except OSError as error:
            raise UserError(f"out folder {self.folder}: cannot be written: {error.strerror}.") from error

    def has(self, cell: Finished) -> bool:
        """Return whether the cell is finished and its file is whole."""
        try:
            return META in (pq.read_table(self._file(cell.id)).schema.metadata or {})
        except (OSError, pa.ArrowException):
            return False

    def save(self, cell: Computed, rows: pd.DataFrame, seconds: float) -> None:
        """Keep a finished cell and forget an earlier failure."""
        meta = {"id": cell.id, "settings": cell.settings, "names": cell.names, "seconds": round(seconds, 3)}
        table = pa.Table.from_pandas(rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), META: json.dumps(meta, default=str)})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomically(self._file(cell.id), buffer.getvalue())
        self._failure(cell.id).unlink(missing_ok=True)

    def save_failure(self, cell: Computed, violation: str, trace: str) -> None:
        """Keep the name and the traceback of a cell's failure; the cell is tried again by the next run."""
        words = {"id": cell.id, "cell": cell.label, "settings": cell.settings}
        failure = {**words, "violation": violation, "traceback": trace}
        write_atomically(self._failure(cell.id), json.dumps(failure, indent=2, default=str))

    def rows(self, cells: Iterable[Finished]) -> pd.DataFrame:
        """Return the rows of those of the cells that are finished, under their present names."""
        frames = [
            pq.read_table(self._file(cell.id)).to_pandas().assign(**cell.names) for cell in cells if self.has(cell)
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def violation(self, cell: Finished) -> str:
        """Return the name of what went wrong when a cell was last tried, '' if nothing did."""
        try:
            failure = json.loads(self._failure(cell.id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return ""
        return str(failure.get("violation", "raised"))

    def seconds(self, cell: Finished) -> float | None:
        """Return how long a finished cell took."""
        return float(self._meta(self._file(cell.id))["seconds"]) if self.has(cell) else None

    def _meta(self, path: Path) -> dict[str, Any]:
        meta: dict[str, Any] = json.loads(pq.read_schema(path).metadata[META])
        return meta

    def _file(self, cell_id: str) -> Path:
        return self.cells / f"{cell_id}.parquet"

    def _failure(self, cell_id: str) -> Path:
        return self.cells / f"{cell_id}.failed.json"
