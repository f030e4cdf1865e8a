"""MNIST-C (Mu & Gilmer 2019): MNIST under 15 corruptions, from its official NumPy files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field

from robustcaps.data.base import Data, Progress
from robustcaps.data.mnist import MNIST, SIDE
from robustcaps.data.protocol import Pixels
from robustcaps.data.sources import MANUAL_DOWNLOADS
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

Corruption = Literal[
    "brightness",
    "canny_edges",
    "dotted_line",
    "fog",
    "glass_blur",
    "impulse_noise",
    "motion_blur",
    "rotate",
    "scale",
    "shear",
    "shot_noise",
    "spatter",
    "stripe",
    "translate",
    "zigzag",
]
FOLDERS = ("mnist_c", "mnist-c")
"""The name of the folder in the archive, and that of the dataset."""


@DATASETS.register("mnist-c")
def mnist_c(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,
    progress: Progress | None,
    corruption: Annotated[
        Corruption | Literal["all", "identity"], Field(description="one of them, or all in turn")
    ] = "all",
) -> Data:
    """Corrupted handwritten digits, 28x28 (MNIST-C); by default the 15 corruptions in turn."""
    folder = next((data_dir / name for name in FOLDERS if (data_dir / name).is_dir()), data_dir / FOLDERS[0])
    names = list(get_args(Corruption)) if corruption == "all" else [corruption]
    count = None if limit is None else -(-limit // len(names))
    parts = [_read(folder / name, split, count) for name in names]
    if len({len(labels) for _, labels in parts}) > 1:
        raise UserError(f"{folder}: the corruptions have different numbers of samples of '{split}'.")
    pixels = np.stack([each for each, _ in parts], axis=1).reshape(-1, SIDE, SIDE)[:limit]
    labels = np.stack([each for _, each in parts], axis=1).reshape(-1)[:limit]
    if progress is not None:
        progress(len(labels), len(labels))
    digit, which = np.divmod(np.arange(len(labels)), len(names))
    category = np.array(MNIST.class_names)[labels]
    return Data(
        images=torch.from_numpy(pixels.astype(np.float32) / 255).unsqueeze(1),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=MNIST.class_names,
        name="mnist-c",
        split=split,
        size=SIDE,
        factors=pd.DataFrame({"category": category, "corruption": np.array(names)[which], "digit": digit}),
    )


def _read(folder: Path, split: str, count: int | None) -> tuple[Pixels, NDArray[np.int64]]:
    """Return the first images (n, 28, 28) and labels of a corruption."""
    images, labels = (_open(folder / f"{split}_{part}.npy") for part in ("images", "labels"))
    pixels = images.reshape(-1, SIDE, SIDE) if images.shape[1:] in ((SIDE, SIDE), (SIDE, SIDE, 1)) else images
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1 or not len(labels):
        raise UserError(
            f"{folder}: {split}_images.npy contains {images.dtype} {images.shape} for {len(labels)} labels, "
            "not bytes n x 28 x 28."
        )
    chosen = np.array(labels[:count], dtype=np.int64)
    if chosen.min() < 0 or chosen.max() >= len(MNIST.class_names):
        raise UserError(f"{folder / f'{split}_labels.npy'}: contains a label that is not a class.")
    return np.array(pixels[:count]), chosen


def _open(path: Path) -> NDArray[np.generic]:
    """Return the array of a file, which is read only where it is needed."""
    if not path.is_file():
        raise UserError(f"dataset 'mnist-c': {path} is missing. {MANUAL_DOWNLOADS['mnist-c']}")
    try:
        array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: not a file of a NumPy array.") from error
    return array
