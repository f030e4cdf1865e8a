"""The store: what is finished is read as it was saved, and what is damaged is named."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robustcaps.errors import UserError
from robustcaps.execution.store import META, DamagedCell, Store


@dataclass(frozen=True)
class StoredThing:
    """What the store asks of a cell."""

    id: str = "c0ffee"
    names: dict[str, str] = field(default_factory=lambda: {"model": "cnn", "attack": "fgsm"})
    label: str = "cnn / toys / fgsm"
    settings: dict[str, Any] = field(default_factory=lambda: {"attack": {"eps": [0.1]}, "path": Path("a")})


ROWS = pd.DataFrame(
    {
        "model": ["cnn"] * 3,
        "attack": ["fgsm"] * 3,
        "index": [0, 1, 2],
        "eps": [0.0, 0.1, 0.1],
        "fooled": [False, True, False],
        "target": pd.array([None, 1, 2], dtype="Int64"),
        "violation": ["", "", "outside-ball"],
    }
)
CELL = StoredThing()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "out")
    store.prepare()
    return store


def read(store: Store, cell: StoredThing = CELL) -> pd.DataFrame:
    rows = store.read(cell)
    assert rows is not None
    return rows


def test_what_is_saved_is_read_with_its_types(store):
    assert not store.has(CELL) and store.read(CELL) is None and store.seconds(CELL) is None
    store.save(CELL, ROWS, 1.23456)
    assert store.has(CELL) and store.seconds(CELL) == 1.235
    pd.testing.assert_frame_equal(read(store), ROWS)
    assert [path.name for path in store.cells.iterdir()] == ["c0ffee.parquet"]


def test_a_file_says_what_it_holds(store):
    store.save(CELL, ROWS, 2.0)
    meta = json.loads(pq.read_schema(store.cells / "c0ffee.parquet").metadata[META])
    assert meta == {
        "id": "c0ffee",
        "settings": {"attack": {"eps": [0.1]}, "path": "a"},
        "names": {"model": "cnn", "attack": "fgsm"},
        "seconds": 2.0,
        "rows": 3,
    }


def test_rows_have_the_names_of_the_cell_that_asks_for_them(store):
    store.save(CELL, ROWS, 1.0)
    renamed = StoredThing(names={"model": "the first", "attack": "sign"})
    found = read(store, renamed)
    assert set(found["model"]) == {"the first"} and set(found["attack"]) == {"sign"}
    pd.testing.assert_frame_equal(found.drop(columns=["model", "attack"]), ROWS.drop(columns=["model", "attack"]))
    assert set(read(store)["model"]) == {"cnn"}


def test_cells_are_told_apart_by_their_ids(store):
    store.save(CELL, ROWS, 1.0)
    assert not store.has(StoredThing(id="decaf"))
    store.save(StoredThing(id="decaf"), ROWS.head(1), 1.0)
    assert len(read(store)) == 3 and len(read(store, StoredThing(id="decaf"))) == 1


def test_saving_again_replaces(store):
    store.save(CELL, ROWS, 1.0)
    store.save(CELL, ROWS.head(2), 2.0)
    assert len(read(store)) == 2 and store.seconds(CELL) == 2.0


def rewritten(content: bytes, rows: int) -> bytes:
    """The file with fewer rows and all of its metadata, as another tool writes it."""
    table = pq.read_table(pa.BufferReader(content))
    sink = io.BytesIO()
    pq.write_table(table.slice(0, rows), sink)
    return sink.getvalue()


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: content[:40] + bytes(200) + content[240:],
    "empty": lambda content: b"",
    "other content": lambda content: b"no Parquet at all",
    "fewer rows": lambda content: rewritten(content, 2),
    "without a checksum": lambda content: rewritten(content, 3),
    "more behind it": lambda content: content + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_and_can_be_saved_again(store, damage):
    store.save(CELL, ROWS, 1.0)
    file = store.cells / "c0ffee.parquet"
    file.write_bytes(damage(file.read_bytes()))
    for look in (store.has, store.read):
        with pytest.raises(DamagedCell, match=r"c0ffee\.parquet: damaged: its checksum is missing or does not match"):
            look(CELL)
    store.save(CELL, ROWS, 1.0)
    pd.testing.assert_frame_equal(read(store), ROWS)


def test_no_flipped_bit_is_ever_read(store):
    store.save(CELL, ROWS, 1.0)
    file = store.cells / "c0ffee.parquet"
    content = file.read_bytes()
    random = Random(0)
    for bit in random.sample(range(8 * len(content)), 1000):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bytes(flipped))
        with pytest.raises(DamagedCell):
            store.read(CELL)
        store.seconds(CELL)


def test_the_file_of_another_cell_is_not_this_cell(store):
    store.save(StoredThing(id="decaf"), ROWS, 1.0)
    (store.cells / "decaf.parquet").rename(store.cells / "c0ffee.parquet")
    with pytest.raises(DamagedCell, match=r"c0ffee\.parquet: damaged: it belongs to another cell, decaf\."):
        store.read(CELL)


def test_a_file_of_somebody_else_is_no_finished_cell(store):
    pq.write_table(pa.Table.from_pandas(ROWS), store.cells / "c0ffee.parquet")
    with pytest.raises(DamagedCell):
        store.has(CELL)
    assert store.seconds(CELL) is None


def test_a_folder_in_the_place_of_a_file_is_named(store):
    (store.cells / "c0ffee.parquet").mkdir()
    with pytest.raises(DamagedCell, match=r"c0ffee\.parquet: cannot be read: Is a directory\."):
        store.has(CELL)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000])
def test_a_damaged_record_of_a_failure_says_nothing(store, content):
    (store.cells / "c0ffee.failed.json").write_bytes(content)
    assert store.violation(CELL) == ""


def test_a_failure_is_kept_until_the_cell_is_finished(store):
    assert store.violation(CELL) == ""
    store.save_failure(CELL, "timed-out", "Traceback\nkilled: ü")
    assert store.violation(CELL) == "timed-out" and not store.has(CELL)
    assert json.loads((store.cells / "c0ffee.failed.json").read_text(encoding="utf-8")) == {
        "id": "c0ffee",
        "cell": "cnn / toys / fgsm",
        "settings": {"attack": {"eps": [0.1]}, "path": "a"},
        "violation": "timed-out",
        "traceback": "Traceback\nkilled: ü",
    }
    store.save_failure(CELL, "raised", "Traceback")
    assert store.violation(CELL) == "raised"
    store.save(CELL, ROWS, 1.0)
    assert store.violation(CELL) == "" and [path.name for path in store.cells.iterdir()] == ["c0ffee.parquet"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"out folder .*file.out: cannot be written: "):
        Store(tmp_path / "file" / "out").prepare()


def test_preparing_leaves_nothing_behind_and_keeps_what_is_there(store):
    store.save(CELL, ROWS, 1.0)
    store.prepare()
    assert [path.name for path in store.cells.iterdir()] == ["c0ffee.parquet"]
