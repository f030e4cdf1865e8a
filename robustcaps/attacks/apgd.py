"""APGD: projected gradient steps that choose their own length, sample by sample (Croce and Hein 2020, algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradient import Eot, Restarts, inside, random_start, reached, value_and_gradient
from robustcaps.attacks.losses import LOSSES, LossName
from robustcaps.attacks.norms import Norm
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

ALPHA = 0.75
"""Share of the new step in a move; the rest repeats the move before."""
RHO = 0.75
"""A step length is kept while at least this share of the steps raises the objective."""

ApgdSteps = Annotated[int, Field(ge=1, description="gradient steps; their sizes adapt to the sample")]


@dataclass(eq=False)
class _Climb:
    """Where each sample that has not reached its goal stands; all fields are (n, ...)."""

    row: Tensor
    image: Tensor
    """x^(k)."""
    before: Tensor
    """x^(k-1)."""
    gradient: Tensor
    """At x^(k)."""
    value: Tensor
    """f(x^(k))."""
    best_image: Tensor
    """x_max."""
    best_gradient: Tensor
    best_value: Tensor
    """f_max."""
    step: Tensor
    """eta, (n, 1, 1, 1)."""
    rises: Tensor
    """How many steps have raised f since the last checkpoint."""
    halved: Tensor
    """Whether eta was halved at the last checkpoint."""
    best_at_check: Tensor
    """f_max at the last checkpoint."""

    @classmethod
    def start(cls, image: Tensor, radius: Tensor) -> _Climb:
        """Stand at the start, with steps of twice the radius."""
        row = torch.arange(len(image), device=image.device)
        lowest = torch.full_like(image[:, 0, 0, 0], -torch.inf)
        nowhere, never = torch.zeros_like(image), torch.zeros_like(row)
        return cls(
            row=row,
            image=image,
            before=image,
            gradient=nowhere,
            value=lowest,
            best_image=image,
            best_gradient=nowhere,
            best_value=lowest,
            step=2.0 * radius,
            rises=never,
            halved=never.bool(),
            best_at_check=lowest,
        )

    def select(self, rows: Tensor) -> _Climb:
        """Return the state of some of the samples."""
        return _Climb(*(getattr(self, each.name)[rows] for each in fields(self)))

    def look(self, value: Tensor, gradient: Tensor) -> None:
        """Take in the objective and its gradient at x^(k)."""
        self.rises = self.rises + (value > self.value)
        better = ~(value <= self.best_value)  # so that NaN counts as best and ends up where the guard sees it
        self.best_image = _where(better, self.image, self.best_image)
        self.best_gradient = _where(better, gradient, self.best_gradient)
        self.best_value = torch.where(better, value, self.best_value)
        self.value, self.gradient = value, gradient

    def check(self, steps_since: int) -> None:
        """Halve eta and go back to x_max where few steps rose (condition 1), or f_max and eta stood (condition 2)."""
        few = self.rises < RHO * steps_since
        stuck = ~self.halved & (self.best_value == self.best_at_check)
        self.halved = few | stuck
        self.step = torch.where(self.halved[:, None, None, None], self.step / 2.0, self.step)
        self.image = _where(self.halved, self.best_image, self.image)
        self.gradient = _where(self.halved, self.best_gradient, self.gradient)
        self.value = torch.where(self.halved, self.best_value, self.value)
        self.best_at_check = self.best_value
        self.rises = torch.zeros_like(self.rises)

    def move(self, images: Tensor, ball: Norm, radius: Tensor, share: float) -> None:
        """Go to x^(k+1): `share` of a projected gradient step, and the rest of the last move once more."""
        stepped = inside(self.image + self.step * ball.ascent(self.gradient), images, ball, radius)
        moved = self.image + share * (stepped - self.image) + (1.0 - share) * (self.image - self.before)
        self.before, self.image = self.image, inside(moved, images, ball, radius)


def _where(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(chosen[:, None, None, None], new, old)


class Apgd(Attack):
    """Steps of twice the radius at first, halved where they stop to pay; the best point is where it goes on from."""

    randomised = True

    def __init__(self, *, loss: LossName, steps: int, restarts: int, eot: int) -> None:
        self.loss = LOSSES[loss]
        self.steps = steps
        self.checkpoints = checkpoints(steps)
        self.restarts = restarts
        self.eot = eot
        self.passes = 3.0 * (steps + 1) * restarts * eot

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the first iterate that reached the goal, else the one with the highest objective of all restarts."""
        best, height = images.clone(), torch.full_like(images[:, 0, 0, 0], -torch.inf)
        left = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for restart in range(self.restarts):
            if len(left) == 0:
                break
            part = model.select(left), images[left], goal.select(left), budget.select(left)
            found, value = self._climb(*part, draws.select(left), restart)
            higher = ~(value <= height[left])
            best[left[higher]], height[left[higher]] = found[higher], value[higher]
            left = left[height[left] < torch.inf]
        return best

    def _climb(
        self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws, restart: int
    ) -> tuple[Tensor, Tensor]:
        """Run the steps from one start; return the best images and their objectives, infinite where they succeeded."""
        ball, radius = budget.ball, budget.radius(images)
        state = _Climb.start(random_start(images, budget, draws, restart), radius)
        best, height = images.clone(), torch.full_like(state.value, torch.inf)
        last_check = 0
        for k in range(self.steps + 1):
            part = model.select(state.row), state.image, goal.select(state.row)
            value, gradient, logits = value_and_gradient(self.loss, *part, passes=self.eot)
            state.look(value, gradient)
            done = reached(*part, passes=self.eot, logits=logits)
            best[state.row[done]] = state.image[done]
            state = state.select(~done)
            if len(state.row) == 0 or k == self.steps:
                break
            if k in self.checkpoints:
                state.check(k - last_check)
                last_check = k
            state.move(images[state.row], ball, radius[state.row], share=ALPHA if k else 1.0)
        best[state.row], height[state.row] = state.best_image, state.best_value
        return best, height


def checkpoints(steps: int) -> set[int]:
    """Return w_j = ceil(p_j N): p_0 = 0, p_1 = 0.22, and intervals that shrink by 0.03 down to 0.06."""
    previous, share = 0.0, 0.22
    found = {0}
    while share < 1.0:
        found.add(math.ceil(round(share * steps, 6)))
        previous, share = share, share + max(share - previous - 0.03, 0.06)
    return found


@ATTACKS.register("apgd-ce")
def apgd_ce(*, steps: ApgdSteps = 50, restarts: Restarts = 1, eot: Eot = 1) -> Attack:
    """Auto-PGD on the cross-entropy of the logits, with step sizes that adapt (Croce and Hein 2020)."""
    return Apgd(loss="ce", steps=steps, restarts=restarts, eot=eot)


@ATTACKS.register("apgd-dlr")
def apgd_dlr(*, steps: ApgdSteps = 50, restarts: Restarts = 1, eot: Eot = 1) -> Attack:
    """Auto-PGD on the difference of logits ratio, which no scaling of the logits masks (Croce and Hein 2020)."""
    return Apgd(loss="dlr", steps=steps, restarts=restarts, eot=eot)
