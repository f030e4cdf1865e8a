from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from robustcaps.data import download, export_toys, load_data
from robustcaps.data.download import get_data
from robustcaps.data.files import Digest
from robustcaps.data.sources import RECORD_ARCHIVES, SOURCES, Source
from robustcaps.errors import UserError
from tests.data.loopback import Loopback, serving
from tests.data.norb_files import NAMES, archive_of, records_of
from tests.tensorflow_files import example, record

LIMIT = 4


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with official files; its samples are toys."""
    folder = tmp_path_factory.mktemp("official")
    export_toys(folder / "smallnorb", limit=LIMIT)
    return folder


@pytest.fixture
def folder(tmp_path: Path, official: Path) -> Path:
    """A data directory with records alone."""
    (tmp_path / "smallnorb").mkdir()
    for split, name in NAMES.items():
        (tmp_path / "smallnorb" / name).write_bytes(b"".join(records_of(official / "smallnorb", split)))
    return tmp_path


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "options",
    [{}, {"eyes": "both", "downsampling": "nearest"}, {"limit": 3, "crop": False}, {"views": "novel-elevations"}],
)
def test_records_are_the_same_data_as_the_official_files(folder: Path, official: Path, split: str, options) -> None:
    read, expected = (load_data("smallnorb", split=split, data_dir=each, **options) for each in (folder, official))
    assert read.digest == expected.digest
    assert read.factors.equals(expected.factors)


def test_official_files_come_first_even_if_incomplete(folder: Path, official: Path) -> None:
    for path in (official / "smallnorb").glob("*-testing-cat.mat"):
        shutil.copy(path, folder / "smallnorb")
    with pytest.raises(UserError, match=r"no file 'smallnorb-.*-testing-dat\.mat'"):
        load_data("smallnorb", data_dir=folder)


SAMPLE = {"label": [0], "meta": [0, 0, 0, 0], "image_raw": bytes(2 * 96 * 96)}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "contains no records"),
        (record(example(**SAMPLE)) * 2, "two records show the same object"),
        (record(example(**SAMPLE))[:-9], "truncated: 9 bytes are missing"),
        (record(example(**{**SAMPLE, "label": [9]})), "9 is not a code for category"),
        (record(example(**{**SAMPLE, "meta": [0, 0, 1, 0]})), "1 is not a code for azimuth"),
        (record(example(**{**SAMPLE, "meta": [0, 0, 0]})), "record 0 is not a sample of smallNORB: it needs the feat"),
        (record(example(**{**SAMPLE, "label": b"car"})), "record 0 .*: a feature has the wrong type"),
        (record(example(**{**SAMPLE, "image_raw": b"..."})), "its image has 3 bytes instead of 2 x 96 x 96"),
        (record(b"\xff"), "record 0 is not a sample of smallNORB: a number is truncated"),
    ],
)
def test_what_is_wrong_with_records_is_said_in_one_line(folder: Path, content: bytes, problem: str) -> None:
    path = folder / "smallnorb" / NAMES["test"]
    path.write_bytes(content)
    with pytest.raises(UserError, match=problem) as caught:
        load_data("smallnorb", data_dir=folder)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def server(official: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A server without the official files, whose digests are those of the toys."""
    monkeypatch.setenv("no_proxy", "*")
    lines = [line.split() for line in (official / "smallnorb" / "SHA256.txt").read_text().splitlines()]
    with serving() as server:
        sources = [Source(f"{n}.gz", (f"{server.url}/official",), Digest(sha, int(size))) for n, sha, size in lines]
        monkeypatch.setitem(SOURCES, "smallnorb", tuple(sources))
        monkeypatch.setitem(RECORD_ARCHIVES, "smallnorb", f"{server.url}/smallNORB_data.tar.gz")
        yield server


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "smallnorb").iterdir()}


def test_records_in_the_official_order_become_the_official_files(tmp_path, official, server) -> None:
    server.files["/smallNORB_data.tar.gz"] = archive_of(official / "smallnorb")
    paths = get_data("smallnorb", data_dir=tmp_path)
    assert {path.name for path in paths} == names(tmp_path) == {s.plain_name for s in SOURCES["smallnorb"]}
    for path in paths:
        assert path.read_bytes() == (official / "smallnorb" / path.name).read_bytes()
    asked = len(server.asked)
    assert get_data("smallnorb", data_dir=tmp_path) == paths
    assert len(server.asked) == asked


def test_records_in_another_order_need_consent(tmp_path, official, server) -> None:
    server.files["/smallNORB_data.tar.gz"] = archive_of(official / "smallnorb", reverse=True)
    with pytest.raises(UserError, match=r"cannot be verified: .* would have SHA-256 .*run the command again with --u"):
        get_data("smallnorb", data_dir=tmp_path)
    assert names(tmp_path) == {"smallNORB_data.tar.gz"}
    server.files.clear()  # it is not downloaded twice
    paths = get_data("smallnorb", data_dir=tmp_path, unverified=True)
    assert {path.name for path in paths} == names(tmp_path) == set(NAMES.values())
    expected = load_data("smallnorb", data_dir=official)
    assert load_data("smallnorb", data_dir=tmp_path).images.flip(0).equal(expected.images)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"cannot download smallnorb-.*HTTP 404.* The archive .*tar\.gz cannot be downloaded either: HTTP 404"),
        (b"no archive", r"not a complete archive: .*\(deleted\)"),
        (b"cut", r"(not a complete archive|truncated): .*\(deleted\)"),
    ],
)
def test_an_archive_that_is_none_is_an_error(tmp_path, official, server, content, problem) -> None:
    if content is not None:
        whole = archive_of(official / "smallnorb")
        server.files["/smallNORB_data.tar.gz"] = whole[: len(whole) // 2] if content == b"cut" else content
    with pytest.raises(UserError, match=problem):
        get_data("smallnorb", data_dir=tmp_path, unverified=True)
    assert not (tmp_path / "smallnorb").exists()


def test_mirrors_replace_the_archive_too(tmp_path, server) -> None:
    with pytest.raises(UserError, match="cannot download smallnorb-"):
        get_data("smallnorb", data_dir=tmp_path, mirrors=[server.url])
    assert not any("tar.gz" in path for path, _ in server.asked)


def test_the_archive_has_a_maximum_size(tmp_path, official, server, monkeypatch) -> None:
    server.files["/smallNORB_data.tar.gz"] = archive_of(official / "smallnorb")
    monkeypatch.setattr(download, "MAX_ARCHIVE", 1000)
    with pytest.raises(UserError, match="larger than the maximum of 1000 bytes"):
        get_data("smallnorb", data_dir=tmp_path)
