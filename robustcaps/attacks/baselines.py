"""Attacks without gradients that every evaluation is measured against: nothing at all, and noise."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradient import random_start
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


class Clean(Attack):
    """The images as they are."""

    needs_eps = False

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the images."""
        return images


class Noise(Attack):
    """Uniform random points of the ball; the first that reaches the goal is kept."""

    randomised = True

    def __init__(self, *, tries: int) -> None:
        self.tries = tries
        self.passes = float(tries)

    @torch.no_grad()
    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the first point that reached the goal, else the last one tried."""
        best = images.clone()
        left = torch.arange(len(images), device=images.device)
        for attempt in range(self.tries):
            best[left] = random_start(images[left], budget.select(left), draws.select(left), attempt)
            if attempt + 1 < self.tries:
                predictions = model.select(left)(best[left]).argmax(1)
                left = left[~goal.select(left).reached(predictions)]
            if len(left) == 0:
                break
        return best


@ATTACKS.register("clean")
def clean() -> Attack:
    """No attack: the clean accuracy (or, targeted, how often the target is predicted anyway)."""
    return Clean()


@ATTACKS.register("noise")
def noise(*, tries: Annotated[int, Field(ge=1, description="random points per sample")] = 10) -> Attack:
    """Random points of the ball: what an attacker without any gradient reaches."""
    return Noise(tries=tries)
