"""ETH-80 (Leibe & Schiele, CVPR 2003): photographs of 8 categories x 10 objects x 41 views, as 96x96 grey PNG files.

Files are eth80/CATEGORY/OBJECT/NAMEn-POLAR-AZIMUTH.png, categories and objects being numbers from 1. As in smallNORB,
half of the objects are held out: odd objects train, even ones test, 1,640 images each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image, UnidentifiedImageError

from robustcaps.data.base import Data, Progress
from robustcaps.data.protocol import INPUT_SIZE, PIXELS, Pixels, prepare
from robustcaps.data.shuffling import shuffled_rows
from robustcaps.data.sources import MANUAL_DOWNLOADS
from robustcaps.data.viewpoints import Views, rows_of
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

_CATEGORIES = ("apple", "car", "cow", "cup", "dog", "horse", "pear", "tomato")
_OBJECTS = {"train": (1, 3, 5, 7, 9), "test": (2, 4, 6, 8, 10)}
_VIEWS = 41
_BLOCK = 100
"""Samples read at a time."""


@DATASETS.register("eth80")
def eth80(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,
    progress: Progress | None,
    crop: bool = True,
    views: Views = "all",
) -> Data:
    """Photographs of fruit, animals, cars and cups from many sides (ETH-80), half of the objects held out."""
    by_category = [_find_files(data_dir / "eth80", category, split) for category in _CATEGORIES]
    all_files = _interleave(by_category)
    all_factors = pd.DataFrame([_parse_factors(path) for path in all_files])
    rows = rows_of(all_factors, views, limit)
    files, factors = [all_files[row] for row in rows], all_factors.iloc[rows].reset_index(drop=True)
    return Data(
        images=prepare(_blocks(files), len(files), crop=crop, progress=progress),
        labels=torch.tensor([_CATEGORIES.index(name) for name in factors["category"]]),
        class_names=_CATEGORIES,
        name="eth80",
        split=split,
        size=INPUT_SIZE,
        factors=factors,
    )


def _find_files(folder: Path, category: str, split: str) -> list[Path]:
    """Return the image files of a category in a split."""
    found = []
    for number in _OBJECTS[split]:
        object_folder = folder / str(1 + _CATEGORIES.index(category)) / str(number)
        views = sorted(object_folder.glob(f"{category}*-???-???.png"))
        if len(views) != _VIEWS:
            raise UserError(
                f"dataset 'eth80': {object_folder} contains {len(views)} files '{category}N-POLAR-AZIMUTH.png', "
                f"expected {_VIEWS}. "
                f"{MANUAL_DOWNLOADS['eth80']} Then set --data-dir or ROBUSTCAPS_DATA to the directory that contains "
                "'eth80'."
            )
        found += views
    return found


def _interleave(categories: list[list[Path]]) -> list[Path]:
    """Return files of all categories in turn, those of each category in a fixed shuffled order."""
    order = shuffled_rows(80, len(categories), len(categories[0]))
    return [categories[row][order[row, column]] for column in range(order.shape[1]) for row in range(len(categories))]


def _parse_factors(path: Path) -> dict[str, str | int]:
    """Return the factors that a file's path encodes."""
    category, instance = path.parts[-3:-1]
    _, polar, azimuth = path.stem.rsplit("-", 2)
    return {
        "category": _CATEGORIES[int(category) - 1],
        "instance": int(instance),
        "polar": int(polar),
        "azimuth": int(azimuth),
    }


def _blocks(files: list[Path]) -> Iterator[Pixels]:
    for start in range(0, len(files), _BLOCK):
        yield np.stack([_read(path) for path in files[start : start + _BLOCK]])[:, None]


def _read(path: Path) -> Pixels:
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image)
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if pixels.shape != (PIXELS, PIXELS) or pixels.dtype != np.uint8:
        raise UserError(
            f"{path}: contains {pixels.dtype} {pixels.shape}, expected a {PIXELS}x{PIXELS} greyscale image."
        )
    return pixels
