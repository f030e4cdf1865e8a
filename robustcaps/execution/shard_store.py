"""The finished shards of cells that are not finished themselves: stored and verified like cells, joined in the end."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from robustcaps.execution.store import DamagedCell, Storable, Store, prepare_folder
from robustcaps.utils.spans import Span, parse_span_id, span_id

ROW_ORDER = ["target", "eps", "index"]
"""How the rows of an attack are sorted; see `attacks.evaluation.evaluate`."""


@dataclass(frozen=True)
class StoredShard:
    """A shard as its file names it."""

    cell_id: str
    span: Span
    names: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The name of its file."""
        return span_id(self.cell_id, self.span)


@dataclass(frozen=True)
class ShardStore:
    """The folder OUT/shards, which exists only while a cell is unfinished."""

    folder: Path

    @property
    def files(self) -> Store:
        """Its files, each stored like a cell."""
        return Store(self.folder, "shards")

    def list_spans(self) -> Mapping[str, list[Span]]:
        """Return, by the ids of cells, the spans of samples whose rows are there, in order and unverified."""
        found: dict[str, list[Span]] = defaultdict(list)
        for file in self.files.cells.glob("*.parquet"):
            if parsed := parse_span_id(file.stem):
                found[parsed[0]].append(parsed[1])
        return {cell_id: sorted(spans) for cell_id, spans in found.items()}

    def verify(self, cell_id: str, spans: Sequence[Span]) -> tuple[list[Span], list[DamagedCell]]:
        """Return the spans of a cell whose files are intact, and what is wrong with the others."""
        intact, damages = [], []
        for span in spans:
            try:
                self.files.has(StoredShard(cell_id, span))
                intact.append(span)
            except DamagedCell as error:
                damages.append(error)
        return intact, damages

    def save(self, shard: Storable, rows: pd.DataFrame, seconds: float) -> None:
        """Store a finished shard."""
        prepare_folder(self.files.cells)
        self.files.save(shard, rows, seconds)

    def copy(self, shard: StoredShard, source: ShardStore) -> None:
        """Store a finished shard of another store as it is there."""
        prepare_folder(self.files.cells)
        self.files.copy(shard, source.files)

    def join(self, cell_id: str, spans: Sequence[Span]) -> tuple[pa.Table, float]:
        """Return the rows of a cell as if it had never been divided, and how long its shards took.

        Raises:
            DamagedCell: A file is not what was saved.
        """
        shards = [StoredShard(cell_id, span) for span in spans]
        return join_rows([(shard.span, self.read(shard)) for shard in shards]), sum(map(self.seconds, shards))

    def read(self, shard: StoredShard) -> pa.Table:
        """Return the rows of a shard; raise `DamagedCell` if its file is not what was saved."""
        table = self.files.read_stored(shard)
        if table is None:
            raise DamagedCell(f"{self.files.cells / shard.id}.parquet: is gone.")
        return table

    def seconds(self, shard: StoredShard) -> float:
        """Return how long a shard took."""
        return self.files.seconds(shard) or 0.0

    def remove(self, cell_id: str, spans: Sequence[Span]) -> None:
        """Delete shards of a cell; the folder, too, if they were the last."""
        for span in spans:
            (self.files.cells / f"{span_id(cell_id, span)}.parquet").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or not there
            self.files.cells.rmdir()


def join_rows(parts: Sequence[tuple[Span, pa.Table]]) -> pa.Table:
    """Return the rows of the spans of a cell in the order of a cell; where spans overlap, the first one counts."""
    tables, end = [], 0
    for span, table in sorted(parts, key=lambda part: part[0]):
        tables.append(table if span.start >= end else table.filter(pc.greater_equal(table["index"], end)))
        end = max(end, span.stop)
    rows = pa.concat_tables(tables, promote_options="permissive")
    return rows.take(np.lexsort([rows[name].to_numpy() for name in reversed(ROW_ORDER)]))
