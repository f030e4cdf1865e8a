"""FGSM, BIM and random search as short loops around a model, without checks, counts or rows: the floor of overhead.

They make about as many passes as the attacks of the same name, on the same images in the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of the cross-entropy in the images, and which are classified right."""
    images = images.detach().requires_grad_()
    logits = model(images)
    (found,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), images)
    return found, logits.argmax(1) == labels


@torch.no_grad()
def is_right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return which images are classified right."""
    right: Tensor = model(images).argmax(1) == labels
    return right


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, *, eps: list[float]) -> None:
    """Take one step of each size along one gradient."""
    sign = gradient(model, images, labels)[0].sign_()
    for each in eps:
        is_right(model, (images + each * sign).clamp_(0.0, 1.0), labels)


def bim(model: nn.Module, images: Tensor, labels: Tensor, *, eps: list[float], steps: int) -> None:
    """Take projected steps; samples that are classified wrong leave the batch."""
    for each in eps:
        clean, current, classes = images, images, labels
        for _ in range(steps):
            slope, right = gradient(model, current, classes)
            moved = current + 2.0 / steps * each * slope.sign_()
            current = torch.clamp(moved - clean, -each, each).add_(clean).clamp_(0.0, 1.0)
            clean, current, classes = clean[right], current[right], classes[right]
        is_right(model, current, classes)


@torch.no_grad()
def square(model: nn.Module, images: Tensor, labels: Tensor, *, eps: float, queries: int) -> None:
    """Keep changes of one window, the same for all samples, that lower the margin; wrong samples leave the batch."""
    best, lowest = images, torch.full((len(images),), torch.inf)
    for _ in range(queries):
        top, left = torch.randint(0, 24, (2,)).tolist()
        tried = best.clone()
        window = (slice(None), slice(None), slice(top, top + 8), slice(left, left + 8))
        tried[window] = images[window] + eps * torch.randint(0, 2, (len(images), 1, 1, 1)).mul_(2).sub_(1)
        logits = model(tried.clamp_(0.0, 1.0))
        own = logits.gather(1, labels[:, None])
        margin = (own - logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True))[:, 0]
        better, kept = margin < lowest, torch.nonzero(margin > 0).flatten()
        best = torch.where(better[:, None, None, None], tried, best)[kept]
        lowest, images, labels = torch.where(better, margin, lowest)[kept], images[kept], labels[kept]


LOOPS: dict[str, Callable[..., None]] = {"fgsm": fgsm, "bim": bim, "square": square}


def run(
    model: nn.Module, images: Tensor, labels: Tensor, batch_size: int, attack: str, options: dict[str, Any]
) -> None:
    """Run the loop of an attack on the images that are classified right, in batches."""
    for start in range(0, len(images), batch_size):
        batch, classes = images[start : start + batch_size], labels[start : start + batch_size]
        right = is_right(model, batch, classes)
        LOOPS[attack](model, batch[right], classes[right], **options)
