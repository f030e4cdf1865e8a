"""The file format of smallNORB: a little-endian header (magic number, dimensions), then the raw numbers.

A split is three files: -dat (n, 2, 96, 96) pixels of the left and right eye, -cat (n,) categories and -info (n, 4)
instance, elevation 0-8, azimuth 0-34 (tens of degrees) and lighting 0-5. All may be gzipped.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from robustcaps.data.files import Digest, opened, read_exactly
from robustcaps.data.protocol import AZIMUTHS, ELEVATIONS, LIGHTINGS
from robustcaps.errors import UserError

FILE_NAMES = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training-{}.mat",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing-{}.mat",
}
"""The official names, for dat, cat or info."""
ROWS: dict[str, tuple[str, tuple[int, ...]]] = {"dat": ("<u1", (2, 96, 96)), "cat": ("<i4", ()), "info": ("<i4", (4,))}
"""Type and shape of a sample in each of the three files."""
CODES = {
    "instance": {instance: instance for instance in range(10)},
    "elevation": dict(enumerate(ELEVATIONS)),
    "azimuth": {azimuth // 10: azimuth for azimuth in AZIMUTHS},
    "lighting": {lighting: lighting for lighting in range(LIGHTINGS)},
}
"""Meaning of the codes in the four columns of -info; angles in degrees."""
DIGESTS_FILE = "SHA256.txt"
"""A file with a line 'name sha256 size' for each unpacked file."""

_DTYPES: dict[int, np.dtype[Any]] = {0x1E3D4C55: np.dtype("<u1"), 0x1E3D4C54: np.dtype("<i4")}
"""Magic numbers."""


@dataclass(frozen=True)
class Header:
    """Type and shape of a file's content."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def packed(self) -> bytes:
        """The header's bytes; at least three dimensions are stored."""
        magic = next(number for number, dtype in _DTYPES.items() if dtype == self.dtype)
        stored = self.shape + (1,) * (3 - len(self.shape))
        return struct.pack(f"<{2 + len(stored)}i", magic, len(self.shape), *stored)

    @property
    def row_size(self) -> int:
        """Bytes per sample."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def file_size(self) -> int:
        """Bytes of the whole file, unpacked."""
        return len(self.packed) + self.shape[0] * self.row_size


def write_rows(path: Path, header: Header, blocks: Iterable[NDArray[Any]]) -> Digest:
    """Write blocks of rows, gzipped if the name ends in .gz."""
    sha, size = hashlib.sha256(), 0
    with _create(path) as file:
        for chunk in _chunks(header, blocks):
            file.write(chunk)
            sha.update(chunk)
            size += len(chunk)
    return Digest(sha.hexdigest(), size)


def read_header(path: Path, dtype: str, row: tuple[int, ...]) -> Header:
    """Read the header of a file and check the type and shape of its rows."""
    with opened(path) as file:
        magic, dimensions = struct.unpack("<2i", read_exactly(file, 8, path))
        if magic not in _DTYPES or not 1 <= dimensions <= 8:
            raise UserError(f"{path}: not a smallNORB file: its magic number is 0x{magic & 0xFFFFFFFF:08X}.")
        stored = max(3, dimensions)
        shape = struct.unpack(f"<{stored}i", read_exactly(file, 4 * stored, path))[:dimensions]
    header = Header(_DTYPES[magic], shape)
    if header.dtype != np.dtype(dtype) or shape[1:] != row or shape[0] < 1:
        expected = " x ".join(map(str, ("n", *row)))
        raise UserError(f"{path}: contains {header.dtype} {shape}, expected {np.dtype(dtype)} of {expected}.")
    return header


def read_rows(path: Path, header: Header, count: int, block: int) -> Iterator[NDArray[Any]]:
    """Yield the first `count` rows of a file in blocks."""
    with opened(path) as file:
        read_exactly(file, len(header.packed), path)
        for start in range(0, count, block):
            rows = min(block, count - start)
            content = read_exactly(file, rows * header.row_size, path)
            yield np.frombuffer(content, header.dtype).reshape(rows, *header.shape[1:])


def _chunks(header: Header, blocks: Iterable[NDArray[Any]]) -> Iterator[bytes]:
    yield header.packed
    for block in blocks:
        yield block.astype(header.dtype, copy=False).tobytes()


@contextmanager
def _create(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing; gzip headers contain neither name nor time, so that equal content gives equal files."""
    with path.open("wb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
            yield cast("IO[bytes]", packed)
