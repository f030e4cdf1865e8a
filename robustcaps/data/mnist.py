"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017) from their official idx files."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from robustcaps.data.base import Data, Progress
from robustcaps.data.files import find_file, opened, read_exactly
from robustcaps.data.protocol import Pixels
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

_FILE_NAMES = {"train": "train-{}-ubyte", "test": "t10k-{}-ubyte"}
SIDE = 28
SHIFT = 2
"""Padding for random shifts in training (Sabour et al. 2017, section 5), in pixels."""


@DATASETS.register("mnist")
def mnist(*, split: str, limit: int | None, data_dir: Path, progress: Progress | None, crop: bool = True) -> Data:
    """Handwritten digits, 28x28, from the official MNIST files."""
    return _load(MNIST, split, limit, data_dir, progress, padding=0 if crop else SHIFT)


@DATASETS.register("fashion-mnist")
def fashion_mnist(
    *, split: str, limit: int | None, data_dir: Path, progress: Progress | None, crop: bool = True
) -> Data:
    """Pictures of clothes, 28x28, from the official Fashion-MNIST files."""
    return _load(_FASHION, split, limit, data_dir, progress, padding=0 if crop else SHIFT)


@dataclass(frozen=True)
class IdxDataset:
    """A dataset of 28x28 images in idx files."""

    name: str
    class_names: tuple[str, ...]
    source: str


MNIST = IdxDataset("mnist", tuple("0123456789"), "the page 'The MNIST Database of handwritten digits'")
_FASHION = IdxDataset(
    "fashion-mnist",
    ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    "the repository zalandoresearch/fashion-mnist",
)


def _load(
    dataset: IdxDataset, split: str, limit: int | None, data_dir: Path, progress: Progress | None, *, padding: int
) -> Data:
    """Return the dataset, its images padded with black pixels."""
    pixels, labels = (values[:limit] for values in read_split(dataset, split, data_dir))
    if progress is not None:
        progress(len(labels), len(labels))
    return Data(
        images=F.pad(torch.from_numpy(pixels.astype(np.float32) / 255).unsqueeze(1), 4 * (padding,)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=dataset.class_names,
        name=dataset.name,
        split=split,
        size=SIDE,
        factors=pd.DataFrame({"category": np.array(dataset.class_names)[labels]}),
    )


def read_split(dataset: IdxDataset, split: str, data_dir: Path) -> tuple[Pixels, NDArray[np.uint8]]:
    """Return the pixels (n, 28, 28) and labels of a split as they are stored."""
    pixels = _read(dataset, data_dir, _FILE_NAMES[split].format("images-idx3"), (SIDE, SIDE))
    labels = _read(dataset, data_dir, _FILE_NAMES[split].format("labels-idx1"), ())
    if len(pixels) != len(labels):
        raise UserError(f"{data_dir / dataset.name}: {len(pixels)} images but {len(labels)} labels of '{split}'.")
    if labels.max(initial=0) >= len(dataset.class_names):
        raise UserError(f"{data_dir / dataset.name}: a label of '{split}' is {labels.max()}, which is not a class.")
    return pixels, labels


def _read(dataset: IdxDataset, data_dir: Path, name: str, row: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an idx file: a magic number with type and rank, the big-endian dimensions, then the bytes."""
    path = find_file(dataset.name, data_dir / dataset.name, name, source=dataset.source)
    dimensions = 1 + len(row)
    with opened(path) as file:
        magic = read_exactly(file, 4, path)
        if magic != bytes((0, 0, 8, dimensions)):
            raise UserError(
                f"{path}: not an idx file of bytes with {dimensions} dimensions: it starts with {magic.hex()}."
            )
        shape = struct.unpack(f">{dimensions}I", read_exactly(file, 4 * dimensions, path))
        if shape[1:] != row:
            raise UserError(f"{path}: contains {shape}, expected n x 28 x 28.")
        content = read_exactly(file, math.prod(shape), path)
        if file.read(1):
            raise UserError(f"{path}: wrong size: more data than the {shape[0]} samples of its header.")
    return np.frombuffer(content, np.uint8).reshape(shape)
