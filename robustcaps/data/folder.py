"""A folder of one's own images: PATH/SPLIT/CLASS/IMAGE, with a folder per class in each split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import Field
from torch import Tensor

from robustcaps.data.base import Data, Progress
from robustcaps.data.protocol import Pixels
from robustcaps.data.shuffling import shuffled_rows
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png")


@DATASETS.register("folder")
def folder(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,
    progress: Progress | None,
    path: Annotated[str, Field(min_length=1, description="folder in the data directory, or an absolute path")],
    classes: Annotated[
        list[str] | None,
        Field(min_length=1, description="the classes in the order of the model's outputs; by default sorted by name"),
    ] = None,
    size: Annotated[
        int | None, Field(ge=1, description="scale to this width and height, cut to a square; by default as they are")
    ] = None,
    grey: Annotated[bool, Field(description="one channel instead of three")] = False,
) -> Data:
    """Your own images: PATH/train/CLASS/*.png and PATH/test/CLASS/*.png (or .jpg, .bmp)."""
    root = data_dir / path
    names = _order_classes(_find_classes(root, split), classes)
    files = _interleave([_find_images(root / split / name) for name in names])[:limit]
    pixels = []
    for done, (_, file) in enumerate(files, start=1):
        pixels.append(_read(file, size, grey=grey))
        if pixels[-1].shape != pixels[0].shape or len(set(pixels[-1].shape[1:])) != 1:
            first = f", {files[0][1]} has {_shape(pixels[0])}" if done > 1 else ""
            raise UserError(
                f"dataset 'folder': {file} has {_shape(pixels[-1])} pixels{first}; images must be squares of one size. "
                "Set size to scale them, e.g. size = 32 (--data-set size=32)."
            )
        if progress is not None:
            progress(done, len(files))
    labels = [label for label, _ in files]
    return Data(
        images=_as_images(pixels),
        labels=torch.tensor(labels),
        class_names=tuple(names),
        split=split,
        factors=pd.DataFrame(
            {
                "category": [names[label] for label in labels],
                "file": [file.relative_to(root).as_posix() for _, file in files],
            }
        ),
    )


def _find_classes(root: Path, split: str) -> list[str]:
    """Return the sorted names of the classes, which both splits must share if both are there."""
    found = {name: _subfolders(root / name) for name in ("train", "test")}
    if not found[split]:
        raise UserError(
            f"dataset 'folder': no folders of images in {root / split}; expected {root / split}/CLASS/IMAGE.png. "
            "A relative path is looked up in the data directory (--data-dir, ROBUSTCAPS_DATA or ./data)."
        )
    if found["train"] and found["test"] and found["train"] != found["test"]:
        differing = ", ".join(sorted(set(found["train"]) ^ set(found["test"])))
        raise UserError(
            f"dataset 'folder': {root}: train and test must have the same classes; in one only: {differing}."
        )
    return found[split]


def _order_classes(found: list[str], wanted: list[str] | None) -> list[str]:
    """Return the classes in the order that is asked for, which must name each once."""
    if wanted is None:
        return found
    if sorted(wanted) != found:
        raise UserError(f"dataset 'folder': classes: must name each of {', '.join(found)} once, not {wanted}.")
    return wanted


def _subfolders(place: Path) -> list[str]:
    if not place.is_dir():
        return []
    return sorted(each.name for each in place.iterdir() if each.is_dir() and not each.name.startswith("."))


def _find_images(place: Path) -> list[Path]:
    """Return the image files of a class, sorted."""
    found = sorted(
        each for each in place.iterdir() if each.suffix.lower() in SUFFIXES and not each.name.startswith(".")
    )
    if not found:
        raise UserError(f"dataset 'folder': no images ({', '.join(SUFFIXES)}) in {place}.")
    return found


def _interleave(by_class: Sequence[Sequence[Path]]) -> list[tuple[int, Path]]:
    """Return (label, file), the classes in turn and each in a fixed shuffled order, so that a limit is balanced."""
    placed = []
    for label, files in enumerate(by_class):
        order = shuffled_rows(label, 1, len(files))[0]
        placed += [(place, label, files[row]) for place, row in enumerate(order)]
    return [(label, file) for _, label, file in sorted(placed)]


def _read(file: Path, size: int | None, *, grey: bool) -> Pixels:
    """Return the pixels of an image (channels, height, width)."""
    try:
        with Image.open(file) as stored:
            image = stored.convert("L" if grey else "RGB")
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def _shape(pixels: Pixels) -> str:
    return f"{pixels.shape[2]}x{pixels.shape[1]}"


def _as_images(pixels: list[Pixels]) -> Tensor:
    return torch.from_numpy(np.stack(pixels).astype(np.float32) / 255)
