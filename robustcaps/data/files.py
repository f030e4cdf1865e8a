"""Finding, opening and checking data files, plain or gzipped, with errors a user can read."""

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
    """SHA-256 and size of a file, or of what it holds packed."""

    sha256: str
    size: int


def data_folder(data_dir: Path | str | None) -> Path:
    """Return the folder of all datasets: the one given, else the one that ROBUSTCAPS_DATA names, else ./data."""
    return Path(data_dir or os.environ.get("ROBUSTCAPS_DATA") or "data")


def find_file(dataset: str, folder: Path, name: str, *, source: str) -> Path:
    """Return a file of a dataset, plain or gzipped, or say what is missing and where it can be had."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    missing = f"no file '{name}' (or .gz) in the folder {folder}" if folder.is_dir() else f"no folder {folder}"
    raise missing_files(dataset, missing, folder.parent, source=source)


def missing_files(dataset: str, missing: str, data_dir: Path, *, source: str) -> UserError:
    """Return the error that says what is missing of a dataset and how it can be had."""
    return UserError(
        f"dataset '{dataset}': {missing}. Get the files with 'robustcaps data get {dataset} --data-dir {data_dir}', or "
        f"from {source}, and say where they are with --data-dir or ROBUSTCAPS_DATA (the folder that contains "
        f"'{dataset}')."
    )


def digest_of(path: Path, *, packed: bool | None = None) -> Digest:
    """Return the digest of a file's unpacked form; `packed` says whether it has to be unpacked, else its name does."""
    sha, size = hashlib.sha256(), 0
    with opened(path, packed=packed) as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            size += len(chunk)
    return Digest(sha.hexdigest(), size)


@contextmanager
def opened(path: Path, *, packed: bool | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if it is `packed` or else if its name ends in .gz; damage is a UserError."""
    unpack = path.suffix == ".gz" if packed is None else packed
    try:
        with cast("IO[bytes]", gzip.open(path)) if unpack else path.open("rb") as file:
            yield file
    except EOFError as error:
        raise UserError(f"{path}: truncated: the gzipped file ends early.") from error
    except (OSError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def read_exactly(file: IO[bytes], size: int, path: Path) -> bytes:
    """Read so many bytes, or say how many are missing."""
    content = file.read(size)
    if len(content) < size:
        raise UserError(f"{path}: truncated: {size - len(content)} bytes are missing.")
    return content
