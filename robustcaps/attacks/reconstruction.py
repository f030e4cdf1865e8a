"""Attacks that know of the detector: images that fool the classifier and are reconstructed well all the same."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradient import Steps, inside, reached, value_and_gradient
from robustcaps.attacks.losses import log_odds_against
from robustcaps.models.reconstruction import class_capsules, decoder_of
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


def fool_then_reconstruct(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the cross-entropy up to the goal; beyond it descend the winning capsule's reconstruction error."""
    reading = model.read(images)
    winners = reading.logits.argmax(1)
    decoded = decoder_of(model.model).decode(class_capsules(reading), winners)
    error = (decoded - images).square().sum((1, 2, 3))
    climb = goal.sign * log_odds_against(reading.logits, goal.classes)
    return torch.where(goal.reached(winners), -error, climb), reading.logits


class Reconstructive(Attack):
    """Steps along `fool_then_reconstruct`; of the iterates that reached the goal, the best reconstructed is kept."""

    def __init__(self, *, steps: int, step: float) -> None:
        self.steps = steps
        self.step = step
        self.passes = 3.0 * steps

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the best reconstructed iterate that reached the goal, else the last one."""
        decoder_of(model.model)
        ball, radius = budget.ball, budget.radius(images)
        best, current = images.clone(), images
        quality = torch.full_like(radius[:, 0, 0, 0], -torch.inf)
        for _ in range(self.steps if budget.eps else 0):
            values, gradient, logits = value_and_gradient(fool_then_reconstruct, model, current, goal)
            better = reached(model, current, goal, passes=1, logits=logits) & (values > quality)
            best[better], quality[better] = current[better], values[better]
            current = inside(current + self.step * radius * ball.ascent(gradient), images, ball, radius)
        return torch.where(torch.isfinite(quality)[:, None, None, None], best, current)


@ATTACKS.register("reconstruction")
def reconstruction(
    *,
    steps: Steps = 50,
    step: Annotated[float, Field(gt=0, le=1, description="step size as a share of eps")] = 0.1,
) -> Attack:
    """R-BIM on models with a decoder: fool, and be reconstructed well by the wrong capsule (Frosst et al. 2018)."""
    return Reconstructive(steps=steps, step=step)
