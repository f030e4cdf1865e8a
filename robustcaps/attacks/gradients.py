"""Gradients of a loss in the images, and success checks, both averaged over passes of a randomised model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import Loss


def value_and_gradient(
    loss: Loss, model: CountedModel, images: Tensor, goal: Goal, *, eot: int = 1
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the objective (n,), its gradient in the images, and the logits if the loss computed them.

    Each is the mean over `eot` passes, which differ for a randomised model: the expectation over transformation of
    Athalye et al. (2018).
    """
    images = images.detach().requires_grad_()
    if eot == 1:
        return _value_and_gradient_once(loss, model, images, goal)
    passes = [_value_and_gradient_once(loss, model, images, goal) for _ in range(eot)]
    values, gradients, logits = zip(*passes, strict=True)
    computed = [each for each in logits if each is not None]
    return _mean(values), _mean(gradients), _mean(computed) if computed else None


def _value_and_gradient_once(
    loss: Loss, model: CountedModel, images: Tensor, goal: Goal
) -> tuple[Tensor, Tensor, Tensor | None]:
    with torch.enable_grad():
        values, logits = loss(model, images, goal)
        (gradient,) = torch.autograd.grad(values, images, torch.ones_like(values))
    return values.detach(), gradient, None if logits is None else logits.detach()


@torch.no_grad()
def reaches_goal(model: CountedModel, images: Tensor, goal: Goal, *, eot: int, logits: Tensor | None = None) -> Tensor:
    """Return which images reach the goal (n,), from their logits if they are known, else from `eot` new passes.

    The mean logits of several passes decide, so that one lucky pass of a randomised model does not count.
    """
    if logits is None:
        logits = _mean([model(images) for _ in range(eot)])
    return goal.reached(logits.argmax(1))


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors)).mean(0)
