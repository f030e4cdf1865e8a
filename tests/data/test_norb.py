from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcaps.data.files import Digest, digest_of
from robustcaps.data.norb import Header, read_header, read_rows, write_rows
from robustcaps.errors import UserError


def test_the_writer_reproduces_an_official_file(tmp_path: Path) -> None:
    """smallNORB's own -cat file is 0 1 2 3 4 over and over; its SHA-256 is known."""
    path = tmp_path / "cat.mat"
    digest = write_rows(path, Header(np.dtype("<i4"), (24_300,)), [np.arange(24_300) % 5])
    assert digest == Digest("591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e", 97_220)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest.sha256


@settings(max_examples=30, deadline=None)
@given(
    row=st.lists(st.integers(1, 4), max_size=4).map(tuple),
    dtype=st.sampled_from(["<u1", "<i4"]),
    rows=st.integers(1, 9),
    count=st.integers(1, 9),
    block=st.integers(1, 10),
    suffix=st.sampled_from([".mat", ".mat.gz"]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    row: tuple[int, ...],
    dtype: str,
    rows: int,
    count: int,
    block: int,
    suffix: str,
) -> None:
    path = tmp_path_factory.mktemp("norb") / f"file{suffix}"
    values = np.random.default_rng(0).integers(0, 250, (rows, *row)).astype(dtype)
    count = min(count, rows)
    written = write_rows(path, Header(np.dtype(dtype), values.shape), np.array_split(values, 3))
    header = read_header(path, dtype, row)
    assert header == Header(np.dtype(dtype), values.shape)
    assert written == digest_of(path)
    assert written.size == header.file_size
    np.testing.assert_array_equal(np.concatenate(list(read_rows(path, header, count, block))), values[:count])


def test_equal_content_is_gzipped_to_equal_files(tmp_path: Path) -> None:
    header = Header(np.dtype("<u1"), (3,))
    for name in ("a.gz", "b.gz"):
        write_rows(tmp_path / name, header, [np.arange(3)])
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.mat", b"", "truncated: 8 bytes are missing"),
        ("a.mat", b"\x55\x4c\x3d\x1e\x01\x00\x00\x00\x05", "truncated: 11 bytes are missing"),
        ("a.mat", b"GIF89a" + bytes(60), "not a smallNORB file: its magic number is 0x38464947"),
        ("a.mat", Header(np.dtype("<i4"), (5,)).packed, r"contains int32 \(5,\), expected uint8 of n x 4"),
        ("a.mat", Header(np.dtype("<u1"), (5, 3)).packed, r"contains uint8 \(5, 3\), expected uint8 of n x 4"),
        ("a.mat.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("a.mat.gz", gzip.compress(b"abc")[:12], "truncated: the gzipped file ends early"),
    ],
    ids=["empty", "short", "magic", "type", "shape", "no gzip", "cut gzip"],
)
def test_a_bad_header_is_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        read_header(tmp_path / name, "<u1", (4,))
    assert str(tmp_path / name) in str(caught.value)
