"""The dataset type: images in [0,1], labels, and the factors of variation of each image."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustcaps.errors import UserError

Progress = Callable[[int, int], None]
"""Called with the number of completed and of all samples."""


Angles = NDArray[np.float64]
"""Degrees, a row for each sample and a column for each angle."""


class Renderer(ABC):
    """Draws samples from other sides, for datasets whose images are rendered."""

    angles: ClassVar[tuple[str, ...]]
    """Names of the angles that can be changed."""

    @abstractmethod
    def limits(self, factors: pd.DataFrame) -> tuple[Angles, Angles]:
        """Return by how many degrees each angle of each sample may be lowered (0 or less) and raised (0 or more)."""

    @abstractmethod
    def draw(self, factors: pd.DataFrame, changes: Angles) -> Tensor:
        """Return the images of samples with these factors, each angle changed by so many degrees."""


@dataclass(frozen=True, eq=False)
class Data:
    """Images (n, channels, height, width), float32 in [0,1]; labels (n,), int64; one row of factors per image.

    `size` is the image size of models. If images are larger (`crop=False`), training takes random crops of that size.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str = "data"
    split: str = "test"
    size: int = 0
    factors: pd.DataFrame = field(default_factory=pd.DataFrame)
    renderer: Renderer | None = None
    """Draws the samples from other sides, if they are rendered."""

    def __post_init__(self) -> None:
        check_images(self.images, self.labels, len(self.class_names))
        if not self.size:
            object.__setattr__(self, "size", self.images.shape[-1])

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Number of channels of an image."""
        return int(self.images.shape[1])

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes and shapes of images and labels."""
        digest = hashlib.sha256()
        for tensor in (self.images, self.labels):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def first(self, count: int) -> Self:
        """Return the first samples, at most `count`."""
        return self.select(torch.arange(min(count, len(self))))

    def select(self, rows: Tensor) -> Self:
        """Return the samples at these indices."""
        factors = self.factors.iloc[rows.tolist()] if len(self.factors) else self.factors
        return replace(self, images=self.images[rows], labels=self.labels[rows], factors=factors)


def check_images(images: Tensor, labels: Tensor, classes: int) -> None:
    """Raise a UserError if images or labels violate what models and attacks rely on."""
    if images.ndim != 4 or images.dtype != torch.float32:
        raise UserError(
            f"images must be float32 (n, channels, height, width), not {images.dtype} {tuple(images.shape)}."
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise UserError(f"labels must be int64 ({len(images)},), not {labels.dtype} {tuple(labels.shape)}.")
    if len(images) == 0:
        raise UserError("the data contains no images.")
    low, high = images.aminmax()
    if not (low >= 0 and high <= 1):  # also true for NaN
        raise UserError("images must be finite and in [0, 1].")
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(f"labels must be in 0..{classes - 1}; found {int(labels.min())}..{int(labels.max())}.")


def as_data(data: Data | tuple[Tensor, Tensor]) -> Data:
    """Return data unchanged, and a pair of tensors (images, labels) as data."""
    if isinstance(data, Data):
        return data
    pair = tuple(data) if isinstance(data, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        raise UserError("data must be a dataset from load_data or a pair of tensors (images, labels).")
    images, labels = pair
    classes = int(labels.max()) + 1 if len(labels) else 0
    return Data(images, labels, class_names=tuple(map(str, range(classes))))
