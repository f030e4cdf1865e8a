from __future__ import annotations

import gzip
import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robustcaps.data import download, load_data
from robustcaps.data.download import DownloadProgress, get_data
from robustcaps.data.files import Digest
from robustcaps.data.sources import DERIVED_FROM, MANUAL_DOWNLOADS, SOURCES, Source
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS
from tests.data.loopback import Loopback, serving
from tests.data.test_mnist import LABELS, PIXELS, idx

CONTENT = np.random.default_rng(0).bytes(200_000) + bytes(20_000)
PACKED = gzip.compress(CONTENT, mtime=0)
HALF = len(PACKED) // 2
NAME = "digits.gz"
PATH = f"/mnist/{NAME}"


def digest(content: bytes) -> Digest:
    return Digest(hashlib.sha256(content).hexdigest(), len(content))


class Recorded(DownloadProgress):
    def __init__(self) -> None:
        self.found_paths: list[Path] = []
        self.aside: list[tuple[Path, Path]] = []
        self.moves: list[tuple[int, int | None]] = []
        self.problems: list[str] = []
        self.urls: list[str] = []

    def found(self, path: Path) -> None:
        self.found_paths.append(path)

    def put_aside(self, path: Path, aside: Path, problem: str) -> None:
        self.aside.append((path, aside))

    def advanced(self, name: str, done: int, total: int | None) -> None:
        self.moves.append((done, total))

    def failed(self, problem: str) -> None:
        self.problems.append(problem)

    def fetched(self, path: Path, url: str) -> None:
        self.urls.append(url)


@pytest.fixture(autouse=True)
def _one_small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mnist be one small file, and no proxy stand between the test and its server."""
    monkeypatch.setitem(SOURCES, "mnist", (Source(NAME, ("https://nowhere.invalid",), digest(CONTENT)),))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Loopback]:
    with serving() as server:
        server.files[PATH] = PACKED
        yield server


@pytest.fixture
def part(tmp_path: Path) -> Path:
    (tmp_path / "mnist").mkdir()
    return tmp_path / "mnist" / f"{NAME}.part"


def get(tmp_path: Path, *mirrors: str, heard: DownloadProgress | None = None) -> None:
    """Get the file and see that it is the right one and alone."""
    (path,) = get_data("mnist", data_dir=tmp_path, mirrors=mirrors, progress=heard)
    assert path == tmp_path / "mnist" / NAME
    assert gzip.decompress(path.read_bytes()) == CONTENT
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["mnist", "multimnist"])
def test_a_file_is_fetched_into_the_folder_of_its_dataset(tmp_path: Path, server: Loopback, name: str) -> None:
    heard = Recorded()
    assert get_data(name, data_dir=tmp_path, mirrors=[server.url + "/"], progress=heard) == [tmp_path / "mnist" / NAME]
    get(tmp_path)  # it is there, so nobody is asked
    assert server.asked == [(PATH, 0)]
    assert heard.urls == [server.url + PATH]
    assert heard.moves[-1] == (len(PACKED), len(PACKED)) and heard.moves == sorted(heard.moves)


def test_the_folder_is_the_one_of_the_environment(
    tmp_path: Path, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBUSTCAPS_DATA", str(tmp_path / "by-environment"))
    assert get_data("mnist", mirrors=[server.url]) == [tmp_path / "by-environment" / "mnist" / NAME]


@pytest.mark.parametrize(
    ("begun", "ranges", "asked"),
    [
        (PACKED[:HALF], True, [HALF]),
        (PACKED[:HALF], False, [HALF]),
        (b"something else", True, [14, 0]),
        (PACKED, True, [len(PACKED)]),
        (PACKED + b"more", True, [len(PACKED) + 4, 0]),
    ],
    ids=["ranges", "no ranges", "another beginning", "whole already", "too long"],
)
def test_a_download_goes_on_where_it_stopped(
    tmp_path: Path, server: Loopback, part: Path, begun: bytes, ranges: bool, asked: list[int]
) -> None:
    part.write_bytes(begun)
    server.ranges = ranges
    get(tmp_path, server.url)
    assert server.asked == [(PATH, start) for start in asked]


def test_a_cut_connection_is_taken_up_again(tmp_path: Path, server: Loopback) -> None:
    server.cuts = [1000, 500]
    heard = Recorded()
    get(tmp_path, server.url, heard=heard)
    assert server.asked == [(PATH, 0), (PATH, 1000), (PATH, 1500)]
    assert heard.problems == []


def test_a_mirror_may_have_packed_the_content_anew(tmp_path: Path, server: Loopback) -> None:
    server.files[PATH] = gzip.compress(CONTENT, compresslevel=1, mtime=7)
    assert server.files[PATH] != PACKED
    get(tmp_path, server.url)


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (None, "HTTP 404"),
        (
            gzip.compress(CONTENT[1:]),
            "wrong content: unpacked, 219999 bytes with SHA-256 [0-9a-f]{64}, expected 220000 with",
        ),
        (b"<html>please log in</html>", "cannot be read: Not a gzipped file"),
        (PACKED[:HALF], "truncated: the gzipped file ends early"),
        (PACKED + bytes(30_000), "larger than the maximum of 221000 bytes"),
    ],
    ids=["404", "wrong", "page", "short", "long"],
)
def test_where_one_place_fails_the_next_is_tried(
    tmp_path: Path, server: Loopback, first: bytes | None, complaint: str
) -> None:
    if first is not None:
        server.files[f"/first{PATH}"] = first
    heard = Recorded()
    get(tmp_path, f"{server.url}/first", server.url, heard=heard)
    assert heard.urls == [server.url + PATH]
    assert len(heard.problems) == 1

    (tmp_path / "mnist" / NAME).unlink()
    with pytest.raises(UserError, match=complaint) as caught:
        get_data("mnist", data_dir=tmp_path, mirrors=[f"{server.url}/first"])
    assert list((tmp_path / "mnist").iterdir()) == []
    assert "\n" not in str(caught.value)
    for named in ("dataset 'mnist'", NAME, server.url, "--mirror", f"to {tmp_path / 'mnist'} yourself"):
        assert named in str(caught.value)


def closed_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("trouble", "complaint", "kept"),
    [
        ({"ranges": False, "cuts": [1000, 900]}, "connection lost after 900 of", 900),
        ({"cuts": [10, 10, 10, 10, 10]}, "connection lost after 50 of", 50),
        ({"cuts": [10], "misplaced": 3}, "the server did not resume at byte 10", 10),
        ({"silent_after": 0}, "no data for 0.2 s", 0),
        ({"files": {}}, "HTTP 404", None),
    ],
    ids=["cut", "cut too often", "misplaced", "silent", "404"],
)
def test_what_a_failing_place_gave_is_kept_for_the_next_time(
    tmp_path: Path,
    server: Loopback,
    part: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: dict[str, object],
    complaint: str,
    kept: int | None,
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    for name, value in trouble.items():
        setattr(server, name, value)
    with pytest.raises(UserError, match=complaint):
        get_data("mnist", data_dir=tmp_path, mirrors=[server.url])
    assert (part.stat().st_size if part.exists() else None) == kept
    with serving() as better:
        better.files[PATH] = PACKED
        get(tmp_path, better.url)
        assert better.asked == [(PATH, kept or 0)]


def test_without_a_network_every_place_is_named(tmp_path: Path) -> None:
    places = [closed_port(), closed_port()]
    with pytest.raises(UserError, match=r"connection failed: .*connection failed: ") as caught:
        get_data("mnist", data_dir=tmp_path, mirrors=places)
    assert all(place in str(caught.value) for place in places)


@pytest.mark.parametrize("name", ["digits", NAME])
def test_a_file_that_is_right_is_not_fetched_again(tmp_path: Path, server: Loopback, part: Path, name: str) -> None:
    path = part.with_name(name)
    path.write_bytes(PACKED if name == NAME else CONTENT)
    heard = Recorded()
    assert get_data("mnist", data_dir=tmp_path, mirrors=[server.url], progress=heard) == [path]
    assert (server.asked, heard.found_paths) == ([], [path])


@pytest.mark.parametrize(
    ("name", "content"), [("digits", CONTENT[1:]), (NAME, PACKED[:HALF]), (NAME, CONTENT), (NAME, b"")]
)
def test_a_file_that_is_wrong_is_put_aside_and_fetched(
    tmp_path: Path, server: Loopback, part: Path, name: str, content: bytes
) -> None:
    path = part.with_name(name)
    path.write_bytes(content)
    heard = Recorded()
    assert get_data("mnist", data_dir=tmp_path, mirrors=[server.url], progress=heard) == [part.with_name(NAME)]
    aside = path.with_name(f"{name}.wrong")
    assert heard.aside == [(path, aside)]
    assert aside.read_bytes() == content
    assert (part.with_name(NAME)).read_bytes() == PACKED
    assert path.exists() is (name == NAME)


def test_an_archive_is_checked_as_it_is(tmp_path: Path, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    (official,) = SOURCES["cifar10"]
    monkeypatch.setitem(SOURCES, "cifar10", (replace(official, digest=digest(PACKED)),))
    server.files[f"/cifar10/{official.name}"] = PACKED
    server.files[f"/anew/cifar10/{official.name}"] = gzip.compress(CONTENT, mtime=7)
    with pytest.raises(UserError, match="wrong content: "):
        get_data("cifar10", data_dir=tmp_path, mirrors=[f"{server.url}/anew"])
    assert get_data("cifar10", data_dir=tmp_path, mirrors=[server.url]) == [tmp_path / "cifar10" / official.name]


def test_what_was_fetched_can_be_loaded(tmp_path: Path, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = []
    for source in SOURCES["fashion-mnist"]:
        content = idx(PIXELS if "images" in source.name else LABELS)
        server.files[f"/fashion-mnist/{source.name}"] = gzip.compress(content)
        sources.append(replace(source, digest=digest(content)))
    monkeypatch.setitem(SOURCES, "fashion-mnist", tuple(sources))
    assert len(get_data("fashion-mnist", data_dir=tmp_path, mirrors=[server.url])) == 4
    for split in ("train", "test"):
        assert load_data("fashion-mnist", split=split, data_dir=tmp_path).labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("name", "mirrors", "complaint"),
    [
        ("mnits", [], "unknown dataset 'mnits'. Did you mean 'mnist'"),
        (
            "eth80",
            [],
            "dataset 'eth80': cannot be downloaded.*96x96 greyscale PNG.*eth80/CATEGORY/OBJECT/NAMEn-POLAR-AZIMUTH",
        ),
        ("mnist", ["file:///etc"], "mirror 'file:///etc': must begin with https"),
        ("mine", [], "dataset 'mine': belongs to the plugin tests.data.test_download"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mirrors: list[str], complaint: str
) -> None:
    DATASETS.names()
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    DATASETS.add("mine", lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=complaint) as caught:
        get_data(name, data_dir=tmp_path, mirrors=mirrors)
    assert "\n" not in str(caught.value)


def test_the_toys_need_no_files(tmp_path: Path) -> None:
    assert get_data("toys", data_dir=tmp_path) == []


def test_every_dataset_says_where_its_files_are() -> None:
    known = {*SOURCES, *DERIVED_FROM, *MANUAL_DOWNLOADS}
    assert {name for name in DATASETS.names() if DATASETS.entry(name).built_in} == known
    for source in (source for sources in SOURCES.values() for source in sources):
        assert source.base_urls and all(url.startswith("https://") and url[-1] != "/" for url in source.base_urls)
        assert len(bytes.fromhex(source.digest.sha256)) == 32 and source.name.endswith(".gz")
