"""The datasets, one file each; importing this package registers them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from robustcaps.data import cifar10, eth80, mnist, multimnist, smallnorb, toys
from robustcaps.data.base import Data, Progress
from robustcaps.data.export import export_toys
from robustcaps.data.files import data_folder
from robustcaps.errors import UserError
from robustcaps.options import validate_options
from robustcaps.registry import DATASETS

__all__ = [
    "Data",
    "cifar10",
    "count_samples",
    "eth80",
    "export_toys",
    "load_data",
    "mnist",
    "multimnist",
    "smallnorb",
    "toys",
]

SPLITS = ("train", "test")
_LOADER_ARGUMENTS = frozenset({"split", "limit", "data_dir", "progress"})


def load_data(
    name: str,
    *,
    split: str = "test",
    limit: int | None = None,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Data:
    """Load a registered dataset.

    Args:
        name: A name from `list_datasets()`.
        split: 'train' or 'test'.
        limit: Load only the first samples.
        data_dir: Directory that contains the datasets; by default $ROBUSTCAPS_DATA or ./data.
        progress: Called with the number of loaded and of all samples.
        **options: Options of the dataset.

    Returns:
        Images, labels and factors.

    """
    checked = _check(name, split, options)
    if limit is not None and limit < 1:
        raise UserError(f"dataset '{name}': limit must be at least 1, not {limit}.")
    factory = DATASETS.entry(name).factory
    data = factory(split=split, limit=limit, data_dir=data_folder(data_dir), progress=progress, **checked)
    return replace(data, name=name, split=split)


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
