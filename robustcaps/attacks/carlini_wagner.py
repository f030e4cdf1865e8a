"""The closest adversarial image in L2 by optimisation (Carlini and Wagner 2017)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import logit_margin
from robustcaps.attacks.minimum_norm import Closest
from robustcaps.attacks.norms import NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

PROGRESS = 0.9999
"""A sample goes on while its lowest objective falls below this share of what it was a tenth of the steps ago."""


class CarliniWagner(Closest):
    """Minimises |x' - x|^2 + c max(0, confidence - margin) with x' = (tanh(w) + 1) / 2, and searches for c."""

    norms = ("l2",)

    def __init__(self, *, steps: int, search_steps: int, lr: float, confidence: float, initial_const: float) -> None:
        self.steps = steps
        self.search_steps = search_steps
        self.lr = lr
        self.confidence = confidence
        self.initial_const = initial_const
        self.passes = 3.0 * steps * search_steps

    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the closest adversarial image of all tries; c rises tenfold until one succeeds, then is bisected."""
        best, distance = images.clone(), _each(images, torch.inf)
        const, lower, upper = _each(images, self.initial_const), _each(images, 0.0), _each(images, torch.inf)
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
        """Run Adam for one c per sample and return the closest success and its distance.

        It is infinite where there was none, NaN where the objective was. A sample without progress leaves the batch.
        """
        best, distance = images.clone(), _each(images, torch.inf)
        lowest, lowest_before = _each(images, torch.inf), _each(images, torch.inf)
        w, adam = _unbounded(images), _Adam(images, self.lr)
        active = torch.arange(len(images), device=images.device)
        for step in range(1, self.steps + 1):
            part = model.select(active), images[active], goal.select(active)
            tried, succeeded, value, gradient = self._objective(*part, const[active], w[active])
            size = torch.linalg.vector_norm(tried - images[active], dim=(1, 2, 3))
            closer = succeeded & (size < distance[active])
            best[active[closer]], distance[active[closer]] = tried[closer], size[closer]
            w[active] -= adam.step(active, gradient, step)
            lowest[active] = torch.minimum(lowest[active], value)
            if step % math.ceil(self.steps / 10) == 0:
                going = lowest[active] < PROGRESS * lowest_before[active]
                lowest_before[active] = lowest[active]
                active = active[going]
            if len(active) == 0:
                break
        return best, torch.where(lowest.isnan(), lowest, distance)

    def _objective(
        self, model: CountedModel, images: Tensor, goal: Goal, const: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the images x' of w, which of them succeed, the objective and its gradient in w."""
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            tried = (torch.tanh(w) + 1.0) / 2.0
            margin, logits = logit_margin(model, tried, goal)
            value = (tried - images).square().sum((1, 2, 3)) + const * torch.relu(self.confidence - margin)
            (gradient,) = torch.autograd.grad(value.sum(), w)
        succeeded = goal.reached(logits.argmax(1)) & (margin >= self.confidence)
        return tried.detach(), succeeded, value.detach(), gradient


class _Adam:
    """Adam (Kingma and Ba 2015) with its moments by sample, so that some samples can go on without the others."""

    def __init__(self, images: Tensor, lr: float) -> None:
        self.lr = lr
        self.first, self.second = torch.zeros_like(images), torch.zeros_like(images)

    def step(self, rows: Tensor, gradient: Tensor, number: int) -> Tensor:
        """Return what to take away from these samples' variables in their step of this number, from 1."""
        self.first[rows] = 0.9 * self.first[rows] + 0.1 * gradient
        self.second[rows] = 0.999 * self.second[rows] + 0.001 * gradient**2
        mean, square = self.first[rows] / (1.0 - 0.9**number), self.second[rows] / (1.0 - 0.999**number)
        return self.lr * mean / (square.sqrt() + 1e-8)


def _unbounded(images: Tensor) -> Tensor:
    """Return w with (tanh(w) + 1) / 2 = x; 0 and 1 are moved inwards by a millionth, for they would be infinite."""
    return torch.atanh((2.0 * images - 1.0) * 0.999999)


def _each(images: Tensor, value: float) -> Tensor:
    """Return the same number for every image, (n,)."""
    return torch.full_like(images[:, 0, 0, 0], value)


@ATTACKS.register("cw")
def cw(
    *,
    steps: Annotated[int, Field(ge=1, description="steps of Adam for each weight c of the misclassification")] = 100,
    search_steps: Annotated[int, Field(ge=1, description="how many weights c are tried")] = 6,
    lr: Annotated[float, Field(gt=0, description="Adam's learning rate")] = 0.01,
    confidence: Annotated[float, Field(ge=0, description="by how much the wrong logit must lead")] = 0.0,
    initial_const: Annotated[float, Field(gt=0, description="the first weight c")] = 0.1,
) -> Closest:
    """Carlini and Wagner's L2 attack: the closest adversarial image by Adam and a search over c (2017)."""
    return CarliniWagner(
        steps=steps, search_steps=search_steps, lr=lr, confidence=confidence, initial_const=initial_const
    )
