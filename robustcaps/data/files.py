"""Locating, opening and hashing data files, plain or gzipped."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from robustcaps.errors import UserError

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Digest:
    """SHA-256 and size of a file's content."""

    sha256: str
    size: int


def data_folder(data_dir: Path | str | None) -> Path:
    """Return the directory that contains the datasets: `data_dir`, else $ROBUSTCAPS_DATA, else ./data."""
    return Path(data_dir or os.environ.get("ROBUSTCAPS_DATA") or "data")


def find_file(dataset: str, folder: Path, name: str, *, source: str) -> Path:
    """Return the path of a dataset's file, plain or gzipped; raise a UserError that says how to get it."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    missing = f"no file '{name}' (or .gz) in the folder {folder}" if folder.is_dir() else f"no folder {folder}"
    raise missing_files(dataset, missing, folder.parent, source=source)


def missing_files(dataset: str, missing: str, data_dir: Path, *, source: str) -> UserError:
    """Return an error that names the missing files of a dataset and says how to get them."""
    return UserError(
        f"dataset '{dataset}': {missing}. Download the files with 'robustcaps data get {dataset} --data-dir {data_dir}'"
        f" or from {source}, and set --data-dir or ROBUSTCAPS_DATA to the directory that contains '{dataset}'."
    )


def digest_of(path: Path, *, packed: bool | None = None) -> Digest:
    """Return the digest of a file's unpacked content; see `opened` for `packed`."""
    sha, size = hashlib.sha256(), 0
    with opened(path, packed=packed) as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            size += len(chunk)
    return Digest(sha.hexdigest(), size)


@contextmanager
def opened(path: Path, *, packed: bool | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, and decompress it if `packed` (default: if its name ends in .gz)."""
    unpack = path.suffix == ".gz" if packed is None else packed
    try:
        with cast("IO[bytes]", gzip.open(path)) if unpack else path.open("rb") as file:
            yield file
    except EOFError as error:
        raise UserError(f"{path}: truncated: the gzipped file ends early.") from error
    except (OSError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def read_exactly(file: IO[bytes], size: int, path: Path) -> bytes:
    """Read `size` bytes; raise a UserError if the file is shorter."""
    content = file.read(size)
    if len(content) < size:
        raise UserError(f"{path}: truncated: {size - len(content)} bytes are missing.")
    return content
