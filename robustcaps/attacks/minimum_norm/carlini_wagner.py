"""The L2 attack of Carlini and Wagner (2017)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import margin_loss
from robustcaps.attacks.minimum_norm.base import MinimumNormAttack
from robustcaps.attacks.norms import NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

MIN_IMPROVEMENT = 0.9999
"""A sample is abandoned unless its objective falls below this fraction of its value a tenth of the steps ago."""


class CarliniWagner(MinimumNormAttack):
    """Minimise |x' - x|^2 + c max(0, confidence - margin) with x' = (tanh(w) + 1) / 2, and search for c."""

    norms = ("l2",)

    def __init__(self, *, steps: int, search_steps: int, lr: float, confidence: float, initial_const: float) -> None:
        self.steps = steps
        self.search_steps = search_steps
        self.lr = lr
        self.confidence = confidence
        self.initial_const = initial_const
        self.passes = 3.0 * steps * search_steps

    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the closest adversarial image over all c; c grows tenfold until a success, then is bisected."""
        best, distance = images.clone(), _full(images, torch.inf)
        const, lower, upper = _full(images, self.initial_const), _full(images, 0.0), _full(images, torch.inf)
        for _ in range(self.search_steps):
            found, size = self._minimise(model, images, goal, const)
            closer = (size < distance) | size.isnan()
            best[closer], distance[closer] = found[closer], size[closer]
            succeeded = size < torch.inf
            lower, upper = torch.where(succeeded, lower, const), torch.where(succeeded, const, upper)
            const = torch.where(upper < torch.inf, (lower + upper) / 2.0, const * 10.0)
        best[distance.isnan()] = torch.nan
        return best

    def _minimise(self, model: CountedModel, images: Tensor, goal: Goal, const: Tensor) -> tuple[Tensor, Tensor]:
        """Run Adam with one c per sample and return the closest adversarial image and its distance.

        The distance is infinite without a success, and NaN if the objective was. Samples that stagnate leave the batch.
        """
        best, distance = images.clone(), _full(images, torch.inf)
        lowest, lowest_before = _full(images, torch.inf), _full(images, torch.inf)
        w, adam = _unbounded(images), _Adam(images, self.lr)
        active = torch.arange(len(images), device=images.device)
        for step in range(1, self.steps + 1):
            subset = model.select(active), images[active], goal.select(active)
            tried, succeeded, value, gradient = self._objective(*subset, const[active], w[active])
            size = torch.linalg.vector_norm(tried - images[active], dim=(1, 2, 3))
            closer = succeeded & (size < distance[active])
            best[active[closer]], distance[active[closer]] = tried[closer], size[closer]
            w[active] -= adam.step(active, gradient, step)
            lowest[active] = torch.minimum(lowest[active], value)
            if step % math.ceil(self.steps / 10) == 0:
                is_improving = lowest[active] < MIN_IMPROVEMENT * lowest_before[active]
                lowest_before[active] = lowest[active]
                active = active[is_improving]
            if len(active) == 0:
                break
        return best, torch.where(lowest.isnan(), lowest, distance)

    def _objective(
        self, model: CountedModel, images: Tensor, goal: Goal, const: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the images x' of w, which of them succeed, the objective, and its gradient in w."""
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            tried = (torch.tanh(w) + 1.0) / 2.0
            margin, logits = margin_loss(model, tried, goal)
            value = (tried - images).square().sum((1, 2, 3)) + const * torch.relu(self.confidence - margin)
            (gradient,) = torch.autograd.grad(value.sum(), w)
        succeeded = goal.reached(logits.argmax(1)) & (margin >= self.confidence)
        return tried.detach(), succeeded, value.detach(), gradient


class _Adam:
    """Adam (Kingma and Ba 2015) with moments per sample, so that samples can stop independently."""

    def __init__(self, images: Tensor, lr: float) -> None:
        self.lr = lr
        self.first, self.second = torch.zeros_like(images), torch.zeros_like(images)

    def step(self, rows: Tensor, gradient: Tensor, number: int) -> Tensor:
        """Return the update to subtract from the variables of some samples in step `number`, counted from 1."""
        self.first[rows] = 0.9 * self.first[rows] + 0.1 * gradient
        self.second[rows] = 0.999 * self.second[rows] + 0.001 * gradient**2
        mean, square = self.first[rows] / (1.0 - 0.9**number), self.second[rows] / (1.0 - 0.999**number)
        return self.lr * mean / (square.sqrt() + 1e-8)


def _unbounded(images: Tensor) -> Tensor:
    """Return w with (tanh(w) + 1) / 2 = x; pixels are scaled by 0.999999 to keep w finite."""
    return torch.atanh((2.0 * images - 1.0) * 0.999999)


def _full(images: Tensor, value: float) -> Tensor:
    """Return the same value for every image, (n,)."""
    return torch.full_like(images[:, 0, 0, 0], value)


@ATTACKS.register("cw")
def cw(
    *,
    steps: Annotated[
        int, Field(ge=1, description="steps of Adam for each weight c of the misclassification term")
    ] = 100,
    search_steps: Annotated[int, Field(ge=1, description="number of weights c that are tried")] = 6,
    lr: Annotated[float, Field(gt=0, description="Adam's learning rate")] = 0.01,
    confidence: Annotated[float, Field(ge=0, description="required margin of the wrong logit")] = 0.0,
    initial_const: Annotated[float, Field(gt=0, description="initial weight c")] = 0.1,
) -> MinimumNormAttack:
    """Minimum-norm L2 attack by Adam and a binary search over the weight c (Carlini and Wagner 2017)."""
    return CarliniWagner(
        steps=steps, search_steps=search_steps, lr=lr, confidence=confidence, initial_const=initial_const
    )
