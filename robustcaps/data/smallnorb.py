"""smallNORB (LeCun, Huang & Bottou, CVPR 2004) from its official files, verified by SHA-256, or from TFRecords."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from robustcaps.data.base import Data, Progress
from robustcaps.data.files import Digest, digest_of, find_file
from robustcaps.data.norb import CODES, DIGESTS_FILE, FILE_NAMES, ROWS, Header, read_header, read_rows
from robustcaps.data.norb_records import RECORD_NAMES, read_blocks, read_samples
from robustcaps.data.protocol import CATEGORIES, EYES, INPUT_SIZE, Downsampling, Eyes, Pixels
from robustcaps.data.sources import SOURCES
from robustcaps.data.viewpoints import Views, prepare_rows, rows_of
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

_OFFICIAL = {source.plain_name: source.digest for source in SOURCES["smallnorb"]}
_SOURCE = "the page 'The Small NORB Dataset, V1.0' (Huang & LeCun, New York University)"
_BLOCK = 500
"""Samples read at a time."""


@dataclass(frozen=True)
class _Split:
    """The samples of a split, from files of either format."""

    path: Path
    """The file with categories and info, for error messages."""
    categories: NDArray[Any]
    info: NDArray[Any]
    blocks: Callable[[int], Iterator[Pixels]]
    """Yields the pixels of the first so many samples."""


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
    downsampling: Downsampling = "mean",
) -> Data:
    """Photographs of 50 toy figures of 5 categories in many views and lights, from the official smallNORB files."""
    samples = _open_split(data_dir / "smallnorb", split)
    factors = _decode_factors(samples)
    rows = rows_of(factors, views, limit)
    channels = [EYES["both"].index(eye) for eye in EYES[eyes]]
    blocks = (block[:, channels] for block in samples.blocks(int(rows.max()) + 1))
    return Data(
        images=prepare_rows(blocks, rows, crop=crop, progress=progress, downsampling=downsampling),
        labels=torch.from_numpy(samples.categories.astype(np.int64)[rows]),
        class_names=CATEGORIES,
        name="smallnorb",
        split=split,
        size=INPUT_SIZE,
        factors=factors.iloc[rows].reset_index(drop=True),
    )


def _open_split(folder: Path, split: str) -> _Split:
    """Return the samples of the official files or, only where none of them is there, of TFRecords."""
    records = folder / RECORD_NAMES[split]
    official = [folder / f"{FILE_NAMES[split].format(kind)}{end}" for kind in ROWS for end in ("", ".gz")]
    if records.is_file() and not any(path.exists() for path in official):
        categories, info = _read_labels(records, records.stat().st_size, records.stat().st_mtime_ns)
        return _Split(records, categories, info, lambda count: read_blocks(records, count, _BLOCK))
    files = _checked_files(folder, split)
    return _Split(
        files["info"][0],
        _all_rows(files["cat"]),
        _all_rows(files["info"]),
        lambda count: read_rows(*files["dat"], count, _BLOCK),
    )


@functools.cache
def _read_labels(path: Path, size: int, changed: int) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: ARG001 - as below
    """Return categories and info of all records, which are verified; no sample may occur twice."""
    labels = [(sample.category, *sample.info) for sample in read_samples(path)]
    if not labels:
        raise UserError(f"{path}: contains no records.")
    if len(set(labels)) < len(labels):
        raise UserError(f"{path}: two records show the same object in the same view and light.")
    table = np.array(labels)
    return table[:, 0], table[:, 1:]


def _decode_factors(samples: _Split) -> pd.DataFrame:
    """Return the decoded factors of all samples."""
    columns = {"category": _decode(samples.path, "category", samples.categories, dict(enumerate(CATEGORIES)))}
    for position, (name, codes) in enumerate(CODES.items()):
        columns[name] = _decode(samples.path, name, samples.info[:, position], codes)
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
