"""Adaptive attack on reconstruction-based detection: misclassified images with a low reconstruction error."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, project
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradient_based.iterative import Steps
from robustcaps.attacks.gradients import reaches_goal, value_and_gradient
from robustcaps.attacks.losses import log_odds
from robustcaps.models.reconstruction import class_capsules, decoder_of
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


def reconstruction_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Log-odds until the goal is reached, then the negative reconstruction error of the winning capsule."""
    output = model.classify(images)
    winners = output.logits.argmax(1)
    decoded = decoder_of(model.model).decode(class_capsules(output), winners)
    error = (decoded - images).square().sum((1, 2, 3))
    classification = goal.sign * log_odds(output.logits, goal.classes)
    return torch.where(goal.reached(winners), -error, classification), output.logits


class ReconstructionAttack(Attack):
    """Gradient steps on `reconstruction_loss`; keeps the successful iterate with the lowest reconstruction error."""

    def __init__(self, *, steps: int, step: float) -> None:
        self.steps = steps
        self.step = step
        self.passes = 3.0 * steps

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the successful iterate with the lowest reconstruction error, else the last iterate."""
        decoder_of(model.model)  # fail early if there is none
        ball, radius = budget.ball, budget.radius(images)
        best, current = images.clone(), images
        best_value = torch.full_like(radius[:, 0, 0, 0], -torch.inf)
        for _ in range(self.steps if budget.eps else 0):
            values, gradient, logits = value_and_gradient(reconstruction_loss, model, current, goal)
            better = reaches_goal(model, current, goal, eot=1, logits=logits) & (values > best_value)
            best[better], best_value[better] = current[better], values[better]
            current = project(current + self.step * radius * ball.ascent(gradient), images, ball, radius)
        return torch.where(torch.isfinite(best_value)[:, None, None, None], best, current)


@ATTACKS.register("reconstruction")
def reconstruction(
    *,
    steps: Steps = 50,
    step: Annotated[float, Field(gt=0, le=1, description="step size as a fraction of eps")] = 0.1,
) -> Attack:
    """R-BIM on models with a decoder: misclassification with a low reconstruction error (Frosst et al. 2018)."""
    return ReconstructionAttack(steps=steps, step=step)
