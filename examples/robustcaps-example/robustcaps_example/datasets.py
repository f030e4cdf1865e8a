"""A dataset: images (n, channels, size, size) in [0,1] and labels, made by a factory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import robustcaps as rc

CLASSES, SIZE = 4, 16


def bars(*, split: str, limit: int | None, data_dir: Path | None, progress: Any, noise: float = 0.2) -> rc.Data:
    """A bright bar at one of four heights, in noise; made up, so there is nothing to download."""
    n = min(limit or 400, 400)
    generator = torch.Generator().manual_seed({"train": 0, "test": 1}[split])
    labels = torch.arange(n) % CLASSES
    images = noise * torch.rand(n, 1, SIZE, SIZE, generator=generator)
    bands = torch.arange(SIZE) * CLASSES // SIZE
    images += 0.5 * (bands == labels[:, None]).float()[:, None, :, None]
    return rc.Data(images, labels, class_names=("top", "upper", "lower", "bottom"), name="example-bars")
