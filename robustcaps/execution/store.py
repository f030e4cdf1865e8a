"""The store: one Parquet file per cell, named by the cell's id, written atomically and verified when it is read.

The shards of unfinished cells are kept in the same way, in a folder of their own.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from robustcaps.attacks.example_columns import EXAMPLE_COLUMNS, EXAMPLE_NAMES
from robustcaps.errors import UserError
from robustcaps.utils.files import make_folder, write_atomically

META = b"robustcaps"
"""The key of the JSON in a file's metadata: the cell's id, settings, names, seconds and number of rows."""
CHECKSUM, CHECKSUM_PREFIX = b"robustcaps.checksum", b"sha256:"
"""The key of the checksum in a file's metadata, and what its value begins with."""
NO_CHECKSUM = b"0" * 64
"""Stands in the place of the checksum while it is computed over the whole file."""


class DamagedCell(UserError):  # noqa: N818  it is what a user reads
    """A stored cell cannot be trusted; the message names the file and says why."""


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
    name: str = "cells"

    @property
    def cells(self) -> Path:
        """The folder of the cells' files."""
        return self.folder / self.name

    def prepare(self) -> list[Path]:
        """Create the folders and return the new ones; a folder that cannot be written is an error."""
        return [*prepare_folder(self.folder), *prepare_folder(self.cells)]

    def has(self, cell: StoredName) -> bool:
        """Return whether the cell is finished; raise `DamagedCell` if its file is not what was saved."""
        return self._verified(cell.id) is not None

    def read(self, cell: StoredName) -> pd.DataFrame | None:
        """Return the rows of a cell under its present names, or None if it is not finished.

        Raises:
            DamagedCell: The file is not what was saved for this cell.
        """
        content = self._verified(cell.id)
        if content is None:
            return None
        rows: pd.DataFrame = pq.read_table(pa.BufferReader(content)).to_pandas()
        return rows.assign(**cell.names)

    def read_examples(self, cell: StoredName) -> pd.DataFrame | None:
        """Return the rows of an attack cell that have images, or None if it is not finished or has no such columns."""
        content = self._verified(cell.id)
        if content is None or not set(EXAMPLE_COLUMNS) <= set(pq.read_schema(pa.BufferReader(content)).names):
            return None
        table = pq.read_table(pa.BufferReader(content), columns=[*EXAMPLE_NAMES, *EXAMPLE_COLUMNS])
        rows: pd.DataFrame = table.filter(table["original"].is_valid()).to_pandas()
        return rows.assign(**{name: value for name, value in cell.names.items() if name in EXAMPLE_NAMES})

    def read_stored(self, cell: StoredName) -> pa.Table | None:
        """Return the rows of a cell as they were saved, under the names they had then, or None if there are none."""
        content = self._verified(cell.id)
        if content is None:
            return None
        table = pq.read_table(pa.BufferReader(content))
        own = {META, CHECKSUM}
        return table.replace_schema_metadata(
            {key: text for key, text in table.schema.metadata.items() if key not in own}
        )

    def read_table(self, cell: StoredName) -> pa.Table | None:
        """Return the rows of an attack cell without images, as an Arrow table with texts as dictionaries.

        Many cells are joined quickly that way.
        """
        content = self._verified(cell.id)
        if content is None:
            return None
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=_text_columns(content))
        names = [name for name in file.schema_arrow.names if name not in EXAMPLE_COLUMNS]
        table = file.read(columns=names, use_threads=False)
        for name, value in cell.names.items():
            column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), pa.array([value]))
            place = table.schema.get_field_index(name)
            table = table.append_column(name, column) if place < 0 else table.set_column(place, name, column)
        return table.replace_schema_metadata(None)

    def save(self, cell: Storable, rows: pd.DataFrame | pa.Table, seconds: float) -> None:
        """Store a finished cell and delete the record of an earlier failure."""
        meta = {"id": cell.id, "settings": cell.settings, "names": cell.names, "seconds": round(seconds, 3)}
        meta["rows"] = len(rows)
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows, preserve_index=False)
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), META: json.dumps(meta, default=str)})
        buffer = io.BytesIO()
        with pq.ParquetWriter(buffer, table.schema, compression="zstd") as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({CHECKSUM: CHECKSUM_PREFIX + NO_CHECKSUM})
        write_atomically(self._file(cell.id), _with_checksum(buffer.getvalue()))
        self._failure(cell.id).unlink(missing_ok=True)

    def save_failure(self, cell: Storable, violation: str, trace: str) -> None:
        """Record the name and the traceback of a failure; the next run tries the cell again."""
        identity = {"id": cell.id, "cell": cell.label, "settings": cell.settings}
        failure = {**identity, "violation": violation, "traceback": trace}
        write_atomically(self._failure(cell.id), json.dumps(failure, indent=2, default=str))

    def copy(self, cell: StoredName, source: Store) -> None:
        """Store a finished cell of another store as it is there."""
        content = source._verified(cell.id)
        if content is not None:
            write_atomically(self._file(cell.id), content)
            self._failure(cell.id).unlink(missing_ok=True)

    def copy_failure(self, cell: StoredName, source: Store) -> None:
        """Record the failure of a cell as another store does, if it does."""
        if source.violation(cell) and source.cells != self.cells:
            write_atomically(self._failure(cell.id), source._failure(cell.id).read_bytes())

    def violation(self, cell: StoredName) -> str:
        """Return why a cell failed when it was last tried, '' if it did not."""
        try:
            failure = json.loads(self._failure(cell.id).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # a damaged record says nothing
            return ""
        return str(failure.get("violation", "raised")) if isinstance(failure, dict) else ""

    def seconds(self, cell: StoredName) -> float | None:
        """Return how long a finished cell took."""
        try:
            return float(_meta(pq.read_schema(self._file(cell.id)))["seconds"])
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
            return None

    def _verified(self, cell_id: str) -> bytes | None:
        """Return the content of a cell's file, or None if there is none; raise `DamagedCell` if it is not as saved."""
        file = self._file(cell_id)
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedCell(f"{file}: cannot be read: {error.strerror}.") from error
        problem = _find_problem(content, cell_id)
        if problem:
            raise DamagedCell(f"{file}: damaged: {problem}.")
        return content

    def _file(self, cell_id: str) -> Path:
        return self.cells / f"{cell_id}.parquet"

    def _failure(self, cell_id: str) -> Path:
        return self.cells / f"{cell_id}.failed.json"


def prepare_folder(folder: Path) -> list[Path]:
    """Create a folder for results and return which folders are new; one that cannot be written is an error."""
    try:
        made = make_folder(folder)
        write_atomically(folder / ".writable", "")
        (folder / ".writable").unlink()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"out folder {folder}: cannot be written: {reason}.") from error
    return made


def _with_checksum(content: bytes) -> bytes:
    """Return a file with its checksum, which covers every other byte, in the place reserved for it."""
    start = content.rindex(CHECKSUM_PREFIX + NO_CHECKSUM) + len(CHECKSUM_PREFIX)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + len(digest) :]


def _find_problem(content: bytes, cell_id: str) -> str:
    """Return why a file is not what was saved for a cell, or ''."""
    start = content.rfind(CHECKSUM_PREFIX) + len(CHECKSUM_PREFIX)
    stated = content[start : start + len(NO_CHECKSUM)]
    computed = hashlib.sha256(content[:start] + NO_CHECKSUM + content[start + len(NO_CHECKSUM) :]).hexdigest()
    if stated != computed.encode():
        return "its checksum is missing or does not match its content"
    try:
        meta = _meta(pq.read_schema(pa.BufferReader(content)))
        rows = pq.read_metadata(pa.BufferReader(content)).num_rows
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return "it is not a file of this store"
    if meta["id"] != cell_id:
        return f"it belongs to another cell, {meta['id']}"
    return "" if rows == meta["rows"] else f"it has {rows} of {meta['rows']} rows"


def _text_columns(content: bytes) -> list[str]:
    """Return the names of a file's columns of text."""
    schema = pq.read_schema(pa.BufferReader(content))
    return [each.name for each in schema if pa.types.is_string(each.type) or pa.types.is_large_string(each.type)]


def _meta(schema: Any) -> dict[str, Any]:
    """Return the JSON in a file's metadata."""
    meta: dict[str, Any] = json.loads((schema.metadata or {})[META])
    return meta
