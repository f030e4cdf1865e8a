"""Overlap in a suite: whether a network sees both of two digits (MultiMNIST, Sabour et al. 2017, section 6)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.models.inference import device_of, eval_mode

BATCH = 64
BOX = 20
"""The side of the box that MNIST fits every digit into, in pixels."""
FACTORS = ("other", "down", "right", "other_down", "other_right")
"""What data must tell of the second digit, and of where both are."""


def overlap_rows(
    model: nn.Module,
    data: Data,
    *,
    eps: float,  # noqa: ARG001  nothing is attacked
    norm: NormName,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    progress: Progress | None,
) -> pd.DataFrame:
    """Return one row per image: its two classes, how many of them are the two strongest answers, and the overlap."""
    absent = [name for name in FACTORS if name not in data.factors]
    if absent:
        raise UserError(f"'{data.name}' does not show two digits: it has no factor '{absent[0]}'. Try multimnist.")
    other = torch.tensor(data.factors["other"].to_numpy())
    strongest = _two_strongest(model, data, progress)
    found = [(strongest == classes[:, None]).any(1).numpy() for classes in (data.labels, other)]
    columns = {"index": np.arange(len(data)), "label": data.labels.numpy(), "other": other.numpy()}
    return pd.DataFrame({**columns, "found": np.sum(found, axis=0), "overlap": box_overlap(data.factors)})


def box_overlap(factors: pd.DataFrame) -> NDArray[np.float64]:
    """Return which share of the box of one digit lies in that of the other."""
    apart = [(factors[way] - factors[f"other_{way}"]).abs().to_numpy() for way in ("down", "right")]
    shares: NDArray[np.float64] = np.prod([(BOX - distance) / BOX for distance in apart], axis=0)
    return shares


def _two_strongest(model: nn.Module, data: Data, progress: Progress | None) -> torch.Tensor:
    """Return the classes of the two highest logits (n, 2), none (-1) where logits are not finite."""
    device = device_of(model)
    answers = []
    with eval_mode(model), torch.no_grad():
        for images in torch.split(data.images, BATCH):
            logits = model(images.to(device)).cpu()
            finite = torch.isfinite(logits).all(1, keepdim=True)
            answers.append(torch.where(finite, logits.topk(2, dim=1).indices, -1))
            if progress:
                progress(sum(map(len, answers)), len(data))
    return torch.cat(answers)
