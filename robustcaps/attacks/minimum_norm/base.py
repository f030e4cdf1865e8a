"""Base class of minimum-norm attacks: one search serves every budget."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, project
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.norms import NormName
from robustcaps.utils.sample_random import Draws


class MinimumNormAttack(Attack):
    """Base class of attacks that minimise the norm of the perturbation. A subclass implements `search`."""

    minimises_norm = True

    @abstractmethod
    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:
        """Return the closest adversarial image found for each image, or the clean image where none was found."""

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the result of the search, projected onto the ball."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the result of one search for each budget, projected onto its ball."""
        found = self.search(model, images, goal, budgets[0].norm, draws)
        for budget in budgets:
            yield project(found, images, budget.ball, budget.radius(images))
