"""Training losses of capsule networks; each returns one value per sample (n,)."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def present_classes(labels: Tensor, classes: int) -> Tensor:
    """Return T (n, classes): 1 for the classes present in an image, else 0; labels are (n,) or (n, objects)."""
    return F.one_hot(labels.view(len(labels), -1), classes).amax(1)


def margin_loss(
    lengths: Tensor, present: Tensor, *, high: float = 0.9, low: float = 0.1, absent_weight: float = 0.5
) -> Tensor:
    """Sum over classes k of T_k max(0, high-|v_k|)^2 + weight (1-T_k) max(0, |v_k|-low)^2 (Sabour et al. 2017, eq. 4).

    `present` (n, classes) holds T_k in {0, 1}; several classes may be present at once.
    """
    missing = (high - lengths).clamp_min(0).square()
    spurious = (lengths - low).clamp_min(0).square()
    return (present * missing + absent_weight * (1 - present) * spurious).sum(dim=1)


def spread_loss(activations: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Sum over classes i other than the label t of max(0, m - (a_t - a_i))^2 (Hinton et al. 2018, eq. 3)."""
    target = activations.gather(1, labels[:, None])
    shortfall = (margin - (target - activations)).clamp_min(0).square()
    return shortfall.scatter(1, labels[:, None], 0.0).sum(dim=1)


def released_spread_margin(progress: float) -> float:
    """Return the margin of the authors' released code, 0.2 + 0.79 sigmoid(step / 50000 - 4), over 500,000 steps."""
    return 0.2 + 0.79 / (1 + math.exp(4 - 10 * progress))


def spread_margin(progress: float) -> float:
    """Return the spread margin m at a fraction of training: linear from 0.2 to 0.9 at one half, then constant."""
    return 0.2 + 0.7 * min(1.0, 2 * progress)
