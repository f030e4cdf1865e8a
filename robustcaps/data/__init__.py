"""The datasets, one file each; importing this package registers them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from robustcaps.data import (
    affine_mnist,
    affnist,
    cifar10,
    eth80,
    folder,
    mnist,
    mnist_c,
    multimnist,
    smallnorb,
    toys,
)
from robustcaps.data.base import Data, Progress
from robustcaps.data.export import export_toys
from robustcaps.data.files import data_folder
from robustcaps.errors import UserError
from robustcaps.options import validate_options
from robustcaps.registry import DATASETS

__all__ = [
    "Data",
    "affine_mnist",
    "affnist",
    "cifar10",
    "count_samples",
    "eth80",
    "export_toys",
    "folder",
    "load_data",
    "mnist",
    "mnist_c",
    "multimnist",
    "smallnorb",
    "toys",
]

SPLITS = ("train", "test")
_LOADER_ARGUMENTS = frozenset({"split", "limit", "skip", "data_dir", "progress"})


def load_data(
    name: str,
    *,
    split: str = "test",
    limit: int | None = None,
    skip: int = 0,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Data:
    """Load a registered dataset.

    Args:
        name: A name from `list_datasets()`.
        split: 'train' or 'test'.
        limit: Load at most so many samples.
        skip: Leave out the first so many samples, for example those that a setting was chosen on.
        data_dir: Directory that contains the datasets; by default $ROBUSTCAPS_DATA or ./data.
        progress: Called with the number of loaded and of all samples.
        **options: Options of the dataset.

    Returns:
        Images, labels and factors.

    """
    checked = _check(name, split, options)
    if limit is not None and limit < 1:
        raise UserError(f"dataset '{name}': limit must be at least 1, not {limit}.")
    if skip < 0:
        raise UserError(f"dataset '{name}': skip must not be negative, but is {skip}.")
    factory = DATASETS.entry(name).factory
    end = None if limit is None else skip + limit
    data = factory(split=split, limit=end, data_dir=data_folder(data_dir), progress=progress, **checked)
    if skip >= len(data):
        raise UserError(f"dataset '{name}': skip = {skip} leaves nothing of the {len(data)} samples of '{split}'.")
    return replace(data.select(torch.arange(skip, len(data))) if skip else data, name=name, split=split)


def count_samples(name: str, *, split: str, data_dir: Path | str | None = None, **options: Any) -> int | None:
    """Return the number of samples of a dataset, or None if only loading it can tell."""
    checked, count = _check(name, split, options), DATASETS.entry(name).count_samples
    return None if count is None else count(split=split, data_dir=data_folder(data_dir), **checked)


def _check(name: str, split: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a dataset, validated, with its defaults."""
    entry = DATASETS.entry(name)
    if split not in SPLITS:
        raise UserError(f"dataset '{name}': unknown split '{split}'. Choose from: {', '.join(SPLITS)}.")
    return validate_options(entry.factory, options, where=f"dataset '{name}'", reserved=_LOADER_ARGUMENTS)
