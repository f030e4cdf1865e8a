from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robustcaps.data import export_toys, load_data
from robustcaps.data.norb import FILE_NAMES, Header, write_rows
from robustcaps.errors import UserError

DAT, CAT, INFO = (FILE_NAMES["test"].format(kind) for kind in ("dat", "cat", "info"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_toys(tmp_path / "smallnorb", limit=7)
    return tmp_path


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_exported_toys_come_back_bit_for_bit(tmp_path: Path, split: str, gzipped: bool) -> None:
    told: list[tuple[int, int]] = []
    progress = lambda done, total: told.append((done, total))
    export_toys(tmp_path / "smallnorb", limit=12, gzipped=gzipped, progress=progress)
    assert told == [(12, 24), (24, 24)]
    for options in ({"eyes": "left"}, {"eyes": "right"}, {"eyes": "both", "crop": False}):
        drawn = load_data("toys", split=split, limit=12, **options)
        read = load_data("smallnorb", split=split, data_dir=tmp_path, **options)
        assert read.digest == drawn.digest
        assert read.factors.equals(drawn.factors)
        assert (read.name, read.split, read.size, read.class_names) == ("smallnorb", split, 32, drawn.class_names)


def test_views_are_those_of_the_toys(tmp_path: Path) -> None:
    export_toys(tmp_path / "smallnorb", limit=60)
    read = load_data("smallnorb", data_dir=tmp_path, views="familiar-elevations", limit=10)
    drawn = load_data("toys", views="familiar-elevations", limit=10)
    assert read.digest == drawn.digest
    assert read.factors.equals(drawn.factors)


def test_a_limit_reads_a_prefix(folder: Path) -> None:
    some, whole = (load_data("smallnorb", data_dir=folder, limit=limit) for limit in (3, 100))
    assert (len(some), len(whole)) == (3, 7)
    assert torch.equal(some.images, whole.images[:3])
    assert some.factors.equals(whole.factors[:3])


def test_the_list_of_digests_has_the_official_layout(folder: Path) -> None:
    lines = [line.split() for line in (folder / "smallnorb" / "SHA256.txt").read_text().splitlines()]
    assert [name for name, _, _ in lines] == [
        FILE_NAMES[split].format(kind) for split in ("test", "train") for kind in ("dat", "cat", "info")
    ]
    for name, sha256, size in lines:
        assert len(sha256) == 64
        assert (folder / "smallnorb" / name).stat().st_size == int(size)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def pack_and_cut(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes())[:-10])
    path.unlink()


@pytest.mark.parametrize(
    ("name", "damage", "complaint"),
    [
        (DAT, Path.unlink, f"no file '{DAT}' .or .gz. in the folder .*data get smallnorb .*Small NORB.*--data-dir or"),
        (INFO, Path.unlink, f"no file '{INFO}'"),
        (DAT, cut, "truncated: 129038 bytes .unpacked., but 129048 according to its header"),
        (DAT, pack_and_cut, "truncated|cannot be read"),
        (CAT, lengthen, "wrong size: 52 bytes"),
        (CAT, lambda path: path.write_bytes(b"GIF89a" + bytes(60)), "not a smallNORB file"),
        (DAT, flip, "wrong SHA-256 [0-9a-f]{64} .*; expected [0-9a-f]{64} .129048 bytes"),
        ("SHA256.txt", lambda path: path.write_text("a b"), "SHA256.txt: line 1: expected 'name sha256 size'"),
        ("SHA256.txt", lambda path: path.write_text("a b 3"), "SHA256.txt: has no line for"),
        ("SHA256.txt", Path.unlink, "wrong SHA-256 .*; expected 2b1de646c57ff.* .447897624 bytes"),
    ],
)
def test_what_is_wrong_with_the_files_is_said_in_one_line(
    folder: Path, name: str, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(folder / "smallnorb" / name)
    with pytest.raises(UserError, match=complaint) as caught:
        load_data("smallnorb", data_dir=folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no folder {tmp_path / 'smallnorb'}"):
        load_data("smallnorb", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "rows", "complaint"),
    [
        (CAT, np.full(7, 5), "5 is not a code for category .0, 1, 2, 3, 4."),
        (INFO, np.full((7, 4), 7), "7 is not a code for azimuth"),
        (CAT, np.zeros(6), "contain different numbers of samples"),
    ],
)
def test_content_that_makes_no_sense_is_refused(folder: Path, name: str, rows: np.ndarray, complaint: str) -> None:
    digest = write_rows(folder / "smallnorb" / name, Header(np.dtype("<i4"), rows.shape), [rows])
    listed = folder / "smallnorb" / "SHA256.txt"
    listed.write_text(listed.read_text() + f"{name} {digest.sha256} {digest.size}\n")
    with pytest.raises(UserError, match=complaint):
        load_data("smallnorb", data_dir=folder)


def test_nothing_to_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="limit must be at least 1, not 0"):
        export_toys(tmp_path, limit=0)
