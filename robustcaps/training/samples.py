"""Training samples: loading, held-out validation samples, and random crops in random order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustcaps.data import load_data
from robustcaps.data.base import Data
from robustcaps.errors import UserError
from robustcaps.options import options_schema
from robustcaps.registry import DATASETS
from robustcaps.utils.sample_random import Draws


def load_train_split(
    name: str,
    options: Mapping[str, Any],
    *,
    limit: int | None,
    data_dir: Path | str | None,
    progress: Callable[[int, int], None],
) -> Data:
    """Return the training split, uncropped if the dataset supports it: `random_batches` crops."""
    uncropped = {"crop": False} if "crop" in options_schema(DATASETS.entry(name).factory).model_fields else {}
    all_options = {**options, **uncropped}
    return load_data(name, split="train", limit=limit, data_dir=data_dir, progress=progress, **all_options)


def hold_out(data: Data, holdout: int) -> tuple[Data, Data | None, str]:
    """Split samples into training and validation samples; also return a description of the latter.

    The last `holdout` instances of each class are held out, or tenths of the samples if the data has no instances.
    """
    if holdout == 0:
        return data, None, "nothing held out"
    if "instance" in data.factors:
        rank = data.factors.groupby(data.labels.numpy())["instance"].rank(method="dense", ascending=False)
        held = torch.tensor((rank <= holdout).to_numpy())
        text = f"the last {holdout} training instance{'s' if holdout > 1 else ''} of each class"
    else:
        held = torch.arange(len(data)) >= len(data) - len(data) * holdout // 10
        text = f"the last {10 * holdout} % of the training samples"
    if set(data.labels[~held].tolist()) != set(data.labels.tolist()) or not bool(held.any()):
        raise UserError(f"holdout={holdout}: holding out {text} leaves too few of the {len(data)} samples.")
    validation = data.select(held.nonzero().flatten())
    centred = replace(validation, images=centre_crop(validation.images, data.size))
    return data.select((~held).nonzero().flatten()), centred, f"{text} ({len(centred)} samples)"


def hold_out_test(test: Data, count: int) -> tuple[Data, Data, str]:
    """Split off the last `count` test samples for validation; also return a description of them."""
    rest = len(test) - count
    if rest < 1:
        raise UserError(f"holdout_test={count}: leaves none of the {len(test)} test samples.")
    return test.first(rest), test.select(torch.arange(rest, len(test))), f"the last {count} test samples"


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the central size x size crop of images."""
    top, left = ((side - size) // 2 for side in images.shape[-2:])
    return images[..., top : top + size, left : left + size]


def random_batches(
    images: Tensor, labels: Tensor, *, size: int, steps: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every sample once, in random order and with a random crop, in `steps` batches of nearly equal size."""
    generator = torch.Generator().manual_seed(seed)
    n = len(images)
    order = torch.randperm(n, generator=generator)
    top, left = (torch.randint(side - size + 1, (n,), generator=generator) for side in images.shape[-2:])
    windows = images.unfold(2, size, 1).unfold(3, size, 1)  # a view: (n, channels, top, left, size, size)
    for rows, y, x in zip(*(index.to(images.device).tensor_split(steps) for index in (order, top, left)), strict=True):
        yield windows[rows, :, y, x], labels[rows]


def add_noise(images: Tensor, std: float, *, seed: int) -> Tensor:
    """Return images with Gaussian noise, not clipped to [0,1]: what a smoothed classifier sees (Cohen et al. 2019)."""
    draws = Draws(seed, torch.arange(len(images), device=images.device))
    return images + std * draws.normal(tuple(images.shape[1:]))
