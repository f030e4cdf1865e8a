"""Export of the toys as smallNORB files, for other tools and to test the smallNORB loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustcaps.data.base import Progress
from robustcaps.data.files import Digest
from robustcaps.data.norb import CODES, DIGESTS_FILE, FILE_NAMES, ROWS, Header, write_rows
from robustcaps.data.protocol import CATEGORIES, EYES, SAMPLES, Pixels
from robustcaps.data.toys.blocks import draw_blocks
from robustcaps.data.toys.factors import sample_factors
from robustcaps.errors import UserError


def export_toys(
    folder: Path | str, *, limit: int | None = None, gzipped: bool = False, progress: Progress | None = None
) -> None:
    """Write both splits, or the first `limit` samples of each, under the official names, with their SHA256.txt."""
    if limit is not None and limit < 1:
        raise UserError(f"toys: limit must be at least 1, not {limit}.")
    count = min(limit or SAMPLES, SAMPLES)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: already exists; choose an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    digests: dict[str, Digest] = {}
    for position, split in enumerate(("test", "train")):
        contents: dict[str, Iterator[NDArray[Any]]] = {
            "dat": _draw(split, count, position * count, progress),
            "cat": iter([np.arange(count) % len(CATEGORIES)]),
            "info": iter([_encode_info(split, count)]),
        }
        for kind, blocks in contents.items():
            name = FILE_NAMES[split].format(kind)
            dtype, row = ROWS[kind]
            path = folder / (f"{name}.gz" if gzipped else name)
            digests[name] = write_rows(path, Header(np.dtype(dtype), (count, *row)), blocks)
    lines = [f"{name} {digest.sha256} {digest.size}\n" for name, digest in digests.items()]
    (folder / DIGESTS_FILE).write_text("".join(lines))


def _draw(split: str, count: int, before: int, progress: Progress | None) -> Iterator[Pixels]:
    """Yield the images of a split and report progress, `before` samples of the other split being done."""
    done = before
    for block in draw_blocks(split, count, EYES["both"]):
        yield block
        done += len(block)
        if progress is not None:
            progress(done, 2 * count)


def _encode_info(split: str, count: int) -> NDArray[np.int64]:
    """Return the factors of the first samples in smallNORB's encoding."""
    factors = sample_factors(split, np.arange(count))
    columns = []
    for name, codes in CODES.items():
        numbers = {value: number for number, value in codes.items()}
        columns.append([numbers[value] for value in factors[name]])
    return np.array(columns).T
