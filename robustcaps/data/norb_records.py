"""smallNORB as TFRecords, as the authors of Hinton et al. 2018 published it."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustcaps.data.files import Digest, opened
from robustcaps.data.norb import FILE_NAMES, ROWS, Header, write_rows
from robustcaps.data.protocol import PIXELS, Pixels
from robustcaps.data.tfrecord import parse_example, read_records
from robustcaps.errors import UserError
from robustcaps.utils.protobuf import FormatError

RECORD_NAMES = {"train": "trainduo-az.tfrecords", "test": "testduo-az.tfrecords"}
_SHAPE = (2, PIXELS, PIXELS)
_CHUNK = 1 << 20
_MAX_MEMBER = 1 << 30


class Sample(NamedTuple):
    """A stereo pair: pixels (2, 96, 96), category, and info (instance, elevation, azimuth, lighting) as in -info."""

    pixels: Pixels
    category: int
    info: tuple[int, ...]


def read_samples(path: Path) -> Iterator[Sample]:
    """Yield the samples of a file of records; raise `UserError` if it is damaged."""
    with opened(path, packed=False) as file:
        yield from _parse_samples(file, path)


def read_blocks(path: Path, count: int, block: int) -> Iterator[Pixels]:
    """Yield the pixels of the first `count` samples in blocks."""
    samples = islice(read_samples(path), count)
    while pixels := [sample.pixels for sample in islice(samples, block)]:
        yield np.stack(pixels)


def convert_archive(archive: Path, folder: Path, digests: dict[str, Digest]) -> str:
    """Write the official files from an archive of records, and keep them only if all have the official digests.

    Args:
        archive: A .tar.gz with both files of records.
        folder: Where the files go.
        digests: The official digests by file name.

    Returns:
        Why the content differs from the official files, or ''.
    """
    written: list[Path] = []
    try:
        for split in RECORD_NAMES:
            with _open_member(archive, split) as file:
                samples = _parse_samples(file, archive)
                for path, found in _write_split(samples, split, folder, digests, written):
                    expected = digests[path.stem]
                    if found != expected:
                        return f"{path.stem} would have SHA-256 {found.sha256}, expected {expected.sha256}"
        for path in written:
            path.replace(path.with_suffix(""))
        return ""
    finally:
        for path in written:
            path.unlink(missing_ok=True)


def extract_archive(archive: Path, folder: Path) -> list[Path]:
    """Extract the two files of records, and return their paths."""
    paths = []
    for split, name in RECORD_NAMES.items():
        part = folder / f"{name}.part"
        with _open_member(archive, split) as file, part.open("wb") as target:
            while chunk := file.read(_CHUNK):
                target.write(chunk)
        paths.append(part.replace(folder / name))
    return paths


def _parse_samples(file: IO[bytes], path: Path) -> Iterator[Sample]:
    for number, record in enumerate(read_records(file, path)):
        try:
            yield _parse_sample(record)
        except FormatError as error:
            raise UserError(f"{path}: record {number} is not a sample of smallNORB: {error}.") from error


def _parse_sample(record: bytes) -> Sample:
    """Return the sample of a record."""
    example = parse_example(record)
    features = [example.get(name, ()) for name in ("image_raw", "label", "meta")]
    if [len(feature) for feature in features] != [1, 1, 4]:
        raise FormatError("it needs the features image_raw, label and four numbers of meta")
    (image,), (label,), info = features
    if not isinstance(image, bytes) or not isinstance(label, int) or any(isinstance(value, bytes) for value in info):
        raise FormatError("a feature has the wrong type")
    if len(image) != np.prod(_SHAPE):
        raise FormatError(f"its image has {len(image)} bytes instead of 2 x 96 x 96")
    return Sample(np.frombuffer(image, np.uint8).reshape(_SHAPE), label, tuple(map(int, info)))


def _write_split(
    samples: Iterator[Sample], split: str, folder: Path, digests: dict[str, Digest], written: list[Path]
) -> Iterator[tuple[Path, Digest]]:
    """Write the three files of a split as *.unverified, in the order of the records; yield their digests."""
    categories: list[int] = []
    info: list[tuple[int, ...]] = []

    def blocks() -> Iterator[Pixels]:
        for sample in samples:
            categories.append(sample.category)
            info.append(sample.info)
            yield sample.pixels

    contents: dict[str, Iterable[NDArray[Any]]] = {"dat": blocks(), "cat": _late(categories), "info": _late(info)}
    for kind, arrays in contents.items():
        name = FILE_NAMES[split].format(kind)
        path = folder / f"{name}.unverified"
        written.append(path)
        dtype, row = ROWS[kind]
        one = Header(np.dtype(dtype), (1, *row))
        count = 1 + (digests[name].size - one.file_size) // one.row_size
        yield path, write_rows(path, Header(one.dtype, (count, *row)), arrays)


def _late(values: list[Any]) -> Iterator[NDArray[Any]]:
    """Yield a list as an array once it is asked for, which is after the pixels are written."""
    yield np.array(values)


@contextmanager
def _open_member(archive: Path, split: str) -> Iterator[IO[bytes]]:
    """Open the file of records of a split in an archive, whichever folder it is in."""
    name = RECORD_NAMES[split]
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if not member.isfile() or PurePosixPath(member.name).name != name:
                    continue
                if member.size > _MAX_MEMBER:
                    raise UserError(f"{archive}: '{name}' has {member.size} bytes, more than the expected 0.5 GB.")
                content = tar.extractfile(member)
                if content is not None:
                    yield content
                    return
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{archive}: not a complete archive: {error}.") from error
    raise UserError(f"{archive}: contains no file '{name}'.")
