"""affNIST (Tieleman 2013): MNIST digits under random affine maps, 40x40 pixels, from its official MATLAB files.

Every digit of MNIST's test split is there 32 times, as are those of the train split in 32 batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.io
import torch
from numpy.typing import NDArray

from robustcaps.data.base import Data, Progress
from robustcaps.data.mnist import MNIST
from robustcaps.data.protocol import Pixels
from robustcaps.data.sources import MANUAL_DOWNLOADS
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

SIDE = 40
BATCHES = {"train": "training_and_validation_batches", "test": "test_batches"}


@DATASETS.register("affnist")
def affnist(*, split: str, limit: int | None, data_dir: Path, progress: Progress | None) -> Data:
    """Handwritten digits under random affine maps, 40x40, from the official affNIST files."""
    blocks = []
    for pixels, labels in _blocks(_find_files(data_dir / "affnist", split), limit):
        blocks.append((torch.from_numpy(pixels.astype(np.float32) / 255), labels))
        if progress is not None:
            done = sum(len(each) for _, each in blocks)
            progress(done, limit or done)
    labels = np.concatenate([labels for _, labels in blocks])
    return Data(
        images=torch.cat([images for images, _ in blocks]).unsqueeze(1),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=MNIST.class_names,
        name="affnist",
        split=split,
        size=SIDE,
        factors=pd.DataFrame({"category": np.array(MNIST.class_names)[labels]}),
    )


def _find_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split: its batches in order, or the one file that has all test samples."""
    batches = [folder / BATCHES[split] / f"{number}.mat" for number in range(1, 33)]
    found = [path for path in batches if path.is_file()]
    if split == "test" and (folder / "test.mat").is_file():
        return [folder / "test.mat"]
    if not found or found != batches[: len(found)]:
        wanted = f"{BATCHES[split]}/1.mat" + (" or test.mat" if split == "test" else "")
        missing = next((path for path in batches if path not in found), folder) if found else folder / wanted
        raise UserError(f"dataset 'affnist': {missing} is missing. {MANUAL_DOWNLOADS['affnist']}")
    return found


def _blocks(files: list[Path], limit: int | None) -> Iterator[tuple[Pixels, NDArray[np.uint8]]]:
    """Yield the pixels (n, 40, 40) and labels of each file, until there are enough."""
    total = 0
    for path in files:
        pixels, labels = _read(path)
        end = None if limit is None else limit - total
        yield pixels[:end], labels[:end]
        total += len(labels)
        if limit is not None and total >= limit:
            return


def _read(path: Path) -> tuple[Pixels, NDArray[np.uint8]]:
    """Return the pixels and labels of a file."""
    try:
        record = scipy.io.loadmat(path, variable_names=["affNISTdata"])["affNISTdata"]
        pixels, labels = record["image"][0, 0], record["label_int"][0, 0].reshape(-1)
    except (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError) as error:
        raise UserError(f"{path}: not a MATLAB file with the images and labels of affNIST.") from error
    if pixels.dtype != np.uint8 or pixels.shape != (SIDE * SIDE, len(labels)) or not len(labels):
        raise UserError(
            f"{path}: contains images {pixels.dtype} {pixels.shape} and {len(labels)} labels, not 1600 x n."
        )
    if labels.max() >= len(MNIST.class_names):
        raise UserError(f"{path}: a label is {labels.max()}, which is not a class.")
    return np.ascontiguousarray(pixels.T).reshape(-1, SIDE, SIDE), labels.astype(np.uint8)
