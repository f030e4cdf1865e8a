"""Attacks that prove labels: written apart from the package, whose attacks they are to judge."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustcaps.data.base import Data

ProofAttack = Callable[[nn.Module, Data, float], Tensor]
"""(model, data, eps) -> adversarial images."""


def gradient_descent(
    model: nn.Module, data: Data, eps: float, *, steps: int, restarts: int = 1, eot: int = 1, noise: float = 0.0
) -> Tensor:
    """Return the images of the lowest margin on the way of signed gradient steps, each half as long as the last third.

    `eot`: passes per gradient, on images with Gaussian noise of this standard deviation.
    """
    generator = torch.Generator().manual_seed(0)
    best, lowest = data.images.clone(), torch.full((len(data),), torch.inf)
    for _ in range(restarts):
        offset = eps * (2.0 * torch.rand(data.images.shape, generator=generator) - 1.0)
        for step in range(steps):
            size = eps / 2.0 ** (1 + step * 4 // steps)
            total, margin = torch.zeros_like(offset), torch.zeros(len(data))
            for _ in range(eot):
                images = (data.images + offset).clamp(0.0, 1.0).requires_grad_()
                jitter = noise * torch.randn(images.shape, generator=generator)
                margins = _margins(model((images + jitter).clamp(0.0, 1.0)), data.labels)
                (gradient,) = torch.autograd.grad(margins.sum(), images)
                total, margin = total + gradient.nan_to_num(), margin + margins.detach() / eot
            better = margin < lowest
            best[better], lowest[better] = images.detach()[better], margin[better]
            offset = (offset - size * total.sign()).clamp(-eps, eps)
    return best


def gradient_of(
    surrogate: Callable[[], nn.Module], *, steps: int = 100, restarts: int = 3, eot: int = 1
) -> ProofAttack:
    """Return an attack that knows a network with the same outputs and sound gradients."""
    return lambda _, data, eps: gradient_descent(surrogate(), data, eps, steps=steps, restarts=restarts, eot=eot)


def far_more_effort(model: nn.Module, data: Data, eps: float) -> Tensor:
    """Follow the model's own gradients with 200 steps and 5 restarts."""
    return gradient_descent(model, data, eps, steps=200, restarts=5)


def averaged_effort(model: nn.Module, data: Data, eps: float) -> Tensor:
    """Follow the model's own gradients, averaged over 30 passes."""
    return gradient_descent(model, data, eps, steps=40, eot=30)


@torch.no_grad()
def window_search(model: nn.Module, data: Data, eps: float) -> Tensor:
    """Set random windows of random sides to one end of the ball, keeping what lowers the margin: 2000 queries."""
    generator = torch.Generator().manual_seed(0)
    n, _, height, width = data.images.shape
    offset = eps * torch.randn(n, 1, 1, width, generator=generator).sign().expand(-1, -1, height, -1)
    lowest = _margins(model((data.images + offset).clamp(0.0, 1.0)), data.labels)
    for query in range(2000):
        side = max(1, int(height * 0.5 * (1.0 - query / 2000) ** 2))
        row, column = (torch.randint(0, length - side + 1, (1,), generator=generator) for length in (height, width))
        tried = offset.clone()
        tried[:, :, row : row + side, column : column + side] = (
            eps * torch.randn(n, 1, 1, 1, generator=generator).sign()
        )
        margins = _margins(model((data.images + tried).clamp(0.0, 1.0)), data.labels)
        better = margins < lowest
        offset, lowest = torch.where(better[:, None, None, None], tried, offset), lowest.minimum(margins)
    return (data.images + offset).clamp(0.0, 1.0)


def _margins(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the output of the label minus the largest other one."""
    own = outputs.gather(1, labels[:, None])[:, 0]
    return own - outputs.scatter(1, labels[:, None], -torch.inf).amax(1)
