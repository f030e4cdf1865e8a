"""The protocol of smallNORB (Hinton et al. 2018, section 4): 96x96 pixels -> 48x48 -> 32x32, in [0, 1]."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustcaps.data.base import Progress

Eye = Literal["left", "right"]
Eyes = Literal["left", "right", "both"]
Pixels = NDArray[np.uint8]
Downsampling = Literal["mean", "nearest"]
"""From 96x96 to 48x48: means of 2x2 pixels, or every other pixel."""

CATEGORIES = ("animal", "human", "plane", "truck", "car")
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
ELEVATIONS = tuple(range(30, 75, 5))
AZIMUTHS = tuple(range(0, 360, 20))
LIGHTINGS = 6
SAMPLES = len(CATEGORIES) * 5 * len(ELEVATIONS) * len(AZIMUTHS) * LIGHTINGS
"""24,300 stereo pairs in each split."""

EYES: dict[Eyes, tuple[Eye, ...]] = {"left": ("left",), "right": ("right",), "both": ("left", "right")}
PIXELS = 96
"""Width and height of the stored images."""
HALF = 48
"""Width and height after downsampling."""
INPUT_SIZE = 32
"""Width and height of a model's input."""


def prepare(
    blocks: Iterable[Pixels],
    count: int,
    *,
    crop: bool,
    progress: Progress | None = None,
    downsampling: Downsampling = "mean",
) -> Tensor:
    """Return `count` samples from blocks of pixels (n, channels, 96, 96) as float32 images."""
    images: list[Tensor] = []
    done = 0
    for pixels in blocks:
        images.append(shrink(pixels, crop=crop, downsampling=downsampling))
        done += len(pixels)
        if progress is not None:
            progress(done, count)
    return torch.cat(images)


def shrink(pixels: Pixels, *, crop: bool, downsampling: Downsampling = "mean") -> Tensor:
    """Return images of half the size as float32 in [0, 1]: 48x48, or the central 32x32 with `crop`."""
    if downsampling == "nearest":
        images = torch.from_numpy(pixels[..., 0::2, 0::2].astype(np.float32) / 255)
    else:
        rows = pixels[..., 0::2, :].astype(np.uint16) + pixels[..., 1::2, :]
        means = (rows[..., 0::2] + rows[..., 1::2]).astype(np.float32) / (4 * 255)
        images = torch.from_numpy(means)
    if not crop:
        return images
    margin = (HALF - INPUT_SIZE) // 2
    return images[..., margin : margin + INPUT_SIZE, margin : margin + INPUT_SIZE].contiguous()
