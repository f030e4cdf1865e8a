"""The store: one Parquet file per cell, named by the cell's id and written atomically."""

from __future__ import annotations

import io
import json
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


class StoredName(Protocol):
    """What identifies a stored cell, and the names that its rows get."""

    @property
    def id(self) -> str:
        """The name of its file."""

    @property
    def names(self) -> dict[str, str]:
        """The columns that only name things."""


class Storable(StoredName, Protocol):
    """What the store records of a cell."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decided its rows."""


@dataclass(frozen=True)
class Store:
    """A folder of finished and failed cells."""

    folder: Path

    @property
    def cells(self) -> Path:
        """The folder of the cells' files."""
        return self.folder / "cells"

    def prepare(self) -> None:
        """Create the folders; a folder that cannot be written is an error."""
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            write_atomically(self.cells / ".writable", "")
            (self.cells / ".writable").unlink()
        except OSError as error:
            raise UserError(f"out folder {self.folder}: cannot be written: {error.strerror}.") from error

    def has(self, cell: StoredName) -> bool:
        """Return whether the cell is finished and its file can be read."""
        return self.read(cell) is not None

    def read(self, cell: StoredName) -> pd.DataFrame | None:
        """Return the rows of a cell under its present names; None if it is not finished or its file is damaged."""
        try:
            table = pq.read_table(self._file(cell.id))
        except (OSError, pa.ArrowException):
            return None
        if META not in (table.schema.metadata or {}):
            return None
        rows: pd.DataFrame = table.to_pandas()
        return rows.assign(**cell.names)

    def save(self, cell: Storable, rows: pd.DataFrame, seconds: float) -> None:
        """Store a finished cell and delete the record of an earlier failure."""
        meta = {"id": cell.id, "settings": cell.settings, "names": cell.names, "seconds": round(seconds, 3)}
        table = pa.Table.from_pandas(rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), META: json.dumps(meta, default=str)})
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        write_atomically(self._file(cell.id), buffer.getvalue())
        self._failure(cell.id).unlink(missing_ok=True)

    def save_failure(self, cell: Storable, violation: str, trace: str) -> None:
        """Record the name and the traceback of a failure; the next run tries the cell again."""
        identity = {"id": cell.id, "cell": cell.label, "settings": cell.settings}
        failure = {**identity, "violation": violation, "traceback": trace}
        write_atomically(self._failure(cell.id), json.dumps(failure, indent=2, default=str))

    def violation(self, cell: StoredName) -> str:
        """Return why a cell failed when it was last tried, '' if it did not."""
        try:
            failure = json.loads(self._failure(cell.id).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # a damaged record says nothing
            return ""
        return str(failure.get("violation", "raised"))

    def seconds(self, cell: StoredName) -> float | None:
        """Return how long a finished cell took."""
        try:
            metadata = pq.read_schema(self._file(cell.id)).metadata or {}
        except (OSError, pa.ArrowException):
            return None
        return float(json.loads(metadata[META])["seconds"]) if META in metadata else None

    def _file(self, cell_id: str) -> Path:
        return self.cells / f"{cell_id}.parquet"

    def _failure(self, cell_id: str) -> Path:
        return self.cells / f"{cell_id}.failed.json"
