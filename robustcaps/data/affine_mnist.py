"""MNIST digits under random affine maps, made from MNIST: a stand-in for affNIST that needs no further files.

As in affNIST (Tieleman 2013), a digit is turned by up to 20 degrees, sheared by up to 0.2, scaled by up to 20 %, and
put anywhere in an image of 40x40 that does not cut it off. With `transform="shift"` it is only put anywhere: networks
that are trained on these show on the others what they know about affine maps (Sabour et al. 2017, section 5.2).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from robustcaps.data.base import Data, Progress
from robustcaps.data.mnist import MNIST, SIDE, read_split
from robustcaps.data.protocol import Pixels
from robustcaps.registry import DATASETS
from robustcaps.utils.affine_maps import transform_images

FRAME = 40
ROTATION, SCALING, SHEARING = 20.0, 0.2, math.degrees(math.atan(0.2))
_KEYS = {"train": 4000, "test": 4001}
"""The random key of each split."""
_NUMBERS = 5
"""Random numbers of a sample."""
_BLOCK = 1000
"""Samples made at a time."""

Numbers = NDArray[np.float64]


@DATASETS.register("affine-mnist")
def affine_mnist(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,
    progress: Progress | None,
    transform: Annotated[
        Literal["affine", "shift"], Field(description="affine, or shift: only put anywhere in the image")
    ] = "affine",
) -> Data:
    """Handwritten digits under random affine maps, 40x40, made from the official MNIST files."""
    pixels, labels = (values[:limit] for values in read_split(MNIST, split, data_dir))
    draws = np.random.Philox(key=_KEYS[split]).random_raw(_NUMBERS * len(labels)).reshape(-1, _NUMBERS) / 2.0**64
    images, maps = [], []
    for start in range(0, len(labels), _BLOCK):
        block = slice(start, start + _BLOCK)
        made, parameters = _transform(pixels[block], draws[block], affine=transform == "affine")
        images.append(made)
        maps.append(parameters)
        if progress is not None:
            progress(sum(map(len, images)), len(labels))
    names = ("rotation", "scaling", "shearing", "right", "down")
    return Data(
        images=torch.cat(images),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=MNIST.class_names,
        name="affine-mnist",
        split=split,
        size=FRAME,
        factors=pd.DataFrame(np.concatenate(maps), columns=names).assign(category=np.array(MNIST.class_names)[labels]),
    )


def _transform(pixels: Pixels, draws: Numbers, *, affine: bool) -> tuple[Tensor, Numbers]:
    """Return the images of digits (n, 1, 40, 40), and their rotation, scaling, shearing and shift in pixels."""
    images = F.pad(torch.from_numpy(pixels.astype(np.float32) / 255).unsqueeze(1), 4 * ((FRAME - SIDE) // 2,))
    angles = (2 * draws[:, :3] - 1) * (ROTATION, SCALING, SHEARING) * affine
    if affine:
        still = np.zeros(len(draws))
        parameters = np.stack([angles[:, 0], still, still, angles[:, 1], angles[:, 2]], axis=1)
        images = transform_images(images, torch.from_numpy(parameters))
    columns, rows = images.amax((1, 2)), images.amax((1, 3))
    right, down = _choose_shifts(columns, draws[:, 3]), _choose_shifts(rows, draws[:, 4])
    shifts = zip(images, down.astype(int), right.astype(int), strict=True)
    moved = torch.stack([image.roll((below, aside), (1, 2)) for image, below, aside in shifts])
    return moved, np.concatenate([angles, right[:, None], down[:, None]], axis=1)


def _choose_shifts(profiles: Tensor, draws: Numbers) -> Numbers:
    """Return a whole number of pixels for each digit that moves none of its pixels out of the image.

    `profiles` (n, 40) are the largest values of its columns, or of its rows.
    """
    is_ink = (profiles > 0).numpy()
    first, last = is_ink.argmax(1), FRAME - 1 - is_ink[:, ::-1].argmax(1)
    places = FRAME - (last - first)
    shifts: Numbers = np.floor(draws * places) - first
    return np.where(is_ink.any(1), shifts, 0.0)
