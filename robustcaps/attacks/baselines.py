"""Baselines that other attacks are compared with: clean images and random noise."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, random_start
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.norms import NORMS
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


class CleanImages(Attack):
    """No attack: the clean images."""

    needs_eps = False
    norms = tuple(NORMS)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the images unchanged."""
        return images


class UniformNoise(Attack):
    """Uniform random points of the ball; the first that reaches the goal is kept."""

    norms = tuple(NORMS)
    randomised = True

    def __init__(self, *, tries: int) -> None:
        self.tries = tries
        self.passes = float(tries)

    @torch.no_grad()
    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the first point that reached the goal, else the last one tried."""
        best = images.clone()
        remaining = torch.arange(len(images), device=images.device)
        for attempt in range(self.tries):
            best[remaining] = random_start(
                images[remaining], budget.select(remaining), draws.select(remaining), attempt
            )
            if attempt + 1 < self.tries:
                predictions = model.select(remaining)(best[remaining]).argmax(1)
                remaining = remaining[~goal.select(remaining).reached(predictions)]
            if len(remaining) == 0:
                break
        return best


@ATTACKS.register("clean")
def clean() -> Attack:
    """No attack: measures the clean accuracy (or, targeted, how often the target is predicted anyway)."""
    return CleanImages()


@ATTACKS.register("noise")
def noise(*, tries: Annotated[int, Field(ge=1, description="random points per sample")] = 10) -> Attack:
    """Uniform random noise inside the ball, a baseline without gradients."""
    return UniformNoise(tries=tries)
