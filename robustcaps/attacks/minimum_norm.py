"""Attacks that look for the closest adversarial image by themselves: one search serves every budget."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.norms import NormName
from robustcaps.utils.sample_random import Draws


class Closest(Attack):
    """Base of attacks that minimise the size of the perturbation. A subclass writes `search`."""

    closest = True

    @abstractmethod
    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:
        """Return the closest adversarial image found in [0,1] for each image, the image itself where none was."""

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return what was found, drawn back into the ball where it lies outside."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield what one search found for each budget, drawn back into its ball where it lies outside."""
        found = self.search(model, images, goal, budgets[0].norm, draws)
        for budget in budgets:
            inside = images + budget.ball.project(found - images, budget.radius(images))
            yield inside.clamp(0.0, 1.0)
