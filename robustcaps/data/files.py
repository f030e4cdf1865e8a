"""Finding and opening data files, plain or gzipped, with errors a user can read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from robustcaps.errors import UserError


def find_file(dataset: str, folder: Path, name: str, *, source: str) -> Path:
    """Return a file of a dataset, plain or gzipped, or say what is missing and where it can be had."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    missing = f"no file '{name}' (or .gz) in the folder" if folder.is_dir() else "no folder"
    raise UserError(
        f"dataset '{dataset}': {missing} {folder}. Get the files from {source}, and say where they are with --data-dir "
        f"or ROBUSTCAPS_DATA (the folder that contains '{folder.name}')."
    )


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked if its name ends in .gz; damage becomes a UserError."""
    try:
        with cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
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
