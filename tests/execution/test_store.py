"""The store: what is finished is read as it was saved, and what is damaged counts as not finished."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robustcaps.errors import UserError
from robustcaps.execution.store import META, Store


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


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: content[:40] + bytes(200) + content[240:],
    "empty": lambda content: b"",
    "other content": lambda content: b"no Parquet at all",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_no_finished_cell_and_can_be_saved_again(store, damage):
    store.save(CELL, ROWS, 1.0)
    file = store.cells / "c0ffee.parquet"
    file.write_bytes(damage(file.read_bytes()))
    assert not store.has(CELL) and store.read(CELL) is None
    store.save(CELL, ROWS, 1.0)
    pd.testing.assert_frame_equal(read(store), ROWS)


def test_a_file_of_somebody_else_is_no_finished_cell(store):
    pq.write_table(pa.Table.from_pandas(ROWS), store.cells / "c0ffee.parquet")
    assert not store.has(CELL) and store.seconds(CELL) is None


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
