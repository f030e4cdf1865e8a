"""The overlap diagnostic: recognition of two overlapping digits (MultiMNIST, Sabour et al. 2017, section 6)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.models.inference import device_of, eval_mode

BATCH_SIZE = 64
DIGIT_BOX = 20
"""Side of the box that MNIST scales every digit to, in pixels."""
REQUIRED_FACTORS = ("other", "down", "right", "other_down", "other_right")
"""Factors of the data: the class of the second digit, and the positions of both."""


def overlap_rows(
    model: nn.Module,
    data: Data,
    *,
    progress: Progress | None,
) -> pd.DataFrame:
    """Return one row per image: its two classes, how many of them are among the two largest logits, and the overlap."""
    missing = [name for name in REQUIRED_FACTORS if name not in data.factors]
    if missing:
        raise UserError(
            f"'{data.name}' does not contain pairs of digits: factor '{missing[0]}' is missing. Try multimnist."
        )
    other = torch.tensor(data.factors["other"].to_numpy())
    top_two = _top_two_classes(model, data, progress)
    found = [(top_two == classes[:, None]).any(1).numpy() for classes in (data.labels, other)]
    columns = {"index": np.arange(len(data)), "label": data.labels.numpy(), "other": other.numpy()}
    return pd.DataFrame({**columns, "found": np.sum(found, axis=0), "overlap": box_overlap(data.factors)})


def box_overlap(factors: pd.DataFrame) -> NDArray[np.float64]:
    """Return the share of one digit's bounding box that lies inside the other's."""
    distances = [(factors[axis] - factors[f"other_{axis}"]).abs().to_numpy() for axis in ("down", "right")]
    shares: NDArray[np.float64] = np.prod([(DIGIT_BOX - distance) / DIGIT_BOX for distance in distances], axis=0)
    return shares


def _top_two_classes(model: nn.Module, data: Data, progress: Progress | None) -> torch.Tensor:
    """Return the classes of the two largest logits (n, 2), -1 where the logits are not finite."""
    device = device_of(model)
    classes = []
    with eval_mode(model), torch.no_grad():
        for images in torch.split(data.images, BATCH_SIZE):
            logits = model(images.to(device)).cpu()
            finite = torch.isfinite(logits).all(1, keepdim=True)
            classes.append(torch.where(finite, logits.topk(2, dim=1).indices, -1))
            if progress:
                progress(sum(map(len, classes)), len(data))
    return torch.cat(classes)
