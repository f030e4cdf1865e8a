"""smallNORB (LeCun, Huang & Bottou, CVPR 2004) from its official files, verified by SHA-256."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from robustcaps.data.base import Data, Progress
from robustcaps.data.files import Digest, digest_of, find_file
from robustcaps.data.norb import CODES, DIGESTS_FILE, FILE_NAMES, ROWS, Header, read_header, read_rows
from robustcaps.data.protocol import CATEGORIES, EYES, INPUT_SIZE, Eyes
from robustcaps.data.sources import SOURCES
from robustcaps.data.viewpoints import Views, prepare_rows, rows_of
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

_OFFICIAL = {source.plain_name: source.digest for source in SOURCES["smallnorb"]}
_SOURCE = "the page 'The Small NORB Dataset, V1.0' (Huang & LeCun, New York University)"
_BLOCK = 500
"""Samples read at a time."""


@DATASETS.register("smallnorb")
def smallnorb(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,
    progress: Progress | None,
    eyes: Eyes = "left",
    crop: bool = True,
    views: Views = "all",
) -> Data:
    """Photographs of 50 toy figures of 5 categories in many views and lights, from the official smallNORB files."""
    files = _checked_files(data_dir / "smallnorb", split)
    factors = _read_factors(files)
    rows = rows_of(factors, views, limit)
    channels = [EYES["both"].index(eye) for eye in EYES[eyes]]
    blocks = (block[:, channels] for block in read_rows(*files["dat"], int(rows.max()) + 1, _BLOCK))
    return Data(
        images=prepare_rows(blocks, rows, crop=crop, progress=progress),
        labels=torch.from_numpy(_all_rows(files["cat"]).astype(np.int64)[rows]),
        class_names=CATEGORIES,
        name="smallnorb",
        split=split,
        size=INPUT_SIZE,
        factors=factors.iloc[rows].reset_index(drop=True),
    )


def _read_factors(files: dict[str, tuple[Path, Header]]) -> pd.DataFrame:
    """Return the decoded factors of all samples."""
    info, category = _all_rows(files["info"]), _all_rows(files["cat"])
    columns = {"category": _decode(files["cat"][0], "category", category, dict(enumerate(CATEGORIES)))}
    for position, (name, codes) in enumerate(CODES.items()):
        columns[name] = _decode(files["info"][0], name, info[:, position], codes)
    return pd.DataFrame(columns)


def _all_rows(file: tuple[Path, Header]) -> NDArray[Any]:
    """Return the rows of a small file."""
    count = file[1].shape[0]
    return next(read_rows(*file, count, count))


def _decode(path: Path, name: str, numbers: NDArray[Any], codes: Mapping[int, Any]) -> NDArray[Any]:
    """Return the values of codes."""
    unknown = set(np.unique(numbers).tolist()) - set(codes)
    if unknown:
        raise UserError(f"{path}: {min(unknown)} is not a code for {name} ({', '.join(map(str, codes))}).")
    return np.array([codes[number] for number in numbers.tolist()])


def _checked_files(folder: Path, split: str) -> dict[str, tuple[Path, Header]]:
    """Return path and header of the dat, cat and info files after verifying them."""
    names = {kind: FILE_NAMES[split].format(kind) for kind in ROWS}
    paths = {kind: find_file("smallnorb", folder, name, source=_SOURCE) for kind, name in names.items()}
    files = {kind: (path, read_header(path, *ROWS[kind])) for kind, path in paths.items()}
    digests = _expected_digests(folder)
    for path, header in files.values():
        _check(path, header, digests)
    samples = {header.shape[0] for _, header in files.values()}
    if len(samples) > 1:
        raise UserError(f"{folder}: the dat, cat and info files of '{split}' contain different numbers of samples.")
    return files


def _expected_digests(folder: Path) -> dict[str, Digest]:
    """Return the expected digests: those listed in the folder, else those of the official files."""
    path = folder / DIGESTS_FILE
    if not path.is_file():
        return _OFFICIAL
    digests = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            name, sha256, size = line.split()
            digests[name] = Digest(sha256, int(size))
        except ValueError as error:
            raise UserError(f"{path}: line {number}: expected 'name sha256 size', found '{line}'.") from error
    return digests


def _check(path: Path, header: Header, digests: dict[str, Digest]) -> None:
    """Raise a UserError if a file is truncated or differs from the expected one."""
    found = _digest_once(path, path.stat().st_size, path.stat().st_mtime_ns)
    if found.size != header.file_size:
        what = "truncated" if found.size < header.file_size else "wrong size"
        raise UserError(
            f"{path}: {what}: {found.size} bytes (unpacked), but {header.file_size} according to its header."
        )
    name = path.name.removesuffix(".gz")
    if name not in digests:
        raise UserError(f"{path.parent / DIGESTS_FILE}: has no line for '{name}'.")
    if found != digests[name]:
        raise UserError(
            f"{path}: wrong SHA-256 {found.sha256} ({found.size} bytes unpacked); "
            f"expected {digests[name].sha256} ({digests[name].size} bytes)."
        )


@functools.cache
def _digest_once(path: Path, size: int, changed: int) -> Digest:  # noqa: ARG001 - a changed file is hashed again
    return digest_of(path)
