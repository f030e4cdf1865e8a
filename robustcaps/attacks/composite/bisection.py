"""Worst case over attacks and minimal eps, per sample, by bisection over a grid of radii.

An adversarial image inside a ball also lies inside every larger ball, so the attacks need not run for each eps.
Bisection assumes that an attack which fails inside a ball fails inside smaller balls as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, PerSampleBudget
from robustcaps.attacks.composite.inner_attack import InnerAttack, build_inner_attack
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.guard import find_violations
from robustcaps.attacks.minimum_norm.base import MinimumNormAttack
from robustcaps.attacks.norms import NORMS
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


@dataclass(frozen=True, eq=False)
class RadiusBisection:
    """Per-sample bisection over a sorted grid of radii; keeps the smallest successful perturbation."""

    model: CountedModel
    images: Tensor
    goal: Goal
    draws: Draws
    budget: Budget
    """Norm, and the largest eps."""
    radii: Tensor
    """(n, K): the grid of radii, ascending."""
    smallest: Tensor
    """(n,): index of the smallest radius with an adversarial image, K if there is none."""
    best: Tensor
    """(n, channels, height, width): that adversarial image, or the clean image."""

    @classmethod
    def start(
        cls, model: CountedModel, images: Tensor, goal: Goal, draws: Draws, budget: Budget, radii: Tensor
    ) -> RadiusBisection:
        """Return the state before any attack has succeeded."""
        smallest = torch.full((len(images),), radii.shape[1], device=images.device)
        return cls(model, images, goal, draws, budget, radii, smallest, images.clone())

    def search(self, attack: Attack) -> None:
        """Bisect for the smallest radius at which an attack succeeds, below the smallest found so far.

        A minimum-norm attack searches by itself and is run once, just below the smallest radius so far.
        """
        largest_failed = torch.full_like(self.smallest, -1)
        runs_once = isinstance(attack, (MinimumNormAttack, MinimalEps))
        while True:
            rows = torch.nonzero(self.smallest - largest_failed > 1).flatten()
            if len(rows) == 0:
                return
            middle = (self.smallest[rows] + largest_failed[rows]) // 2
            tried = self.smallest[rows] - 1 if runs_once else middle
            succeeded = self._try(attack, rows, tried)
            largest_failed[rows] = torch.where(succeeded, largest_failed[rows], tried)
            if runs_once:
                return

    def _try(self, attack: Attack, rows: Tensor, tried: Tensor) -> Tensor:
        """Run an attack on some samples, each with its own radius, and return on which it succeeded."""
        model, images, goal = self.model.select(rows), self.images[rows], self.goal.select(rows)
        radii = self.radii[rows, tried][:, None, None, None]
        budget = PerSampleBudget(self.budget.eps, self.budget.norm, self.budget.unit, radii=radii)
        adversarial: Any = attack.run(model, images, goal, budget, self.draws.select(rows))
        violations = find_violations(adversarial, images, budget)
        model.add_inner_violations(violations)
        succeeded = torch.tensor([violation is None for violation in violations], device=rows.device)
        if bool(succeeded.any()):
            valid = succeeded.nonzero().flatten()
            with torch.no_grad():
                succeeded[valid] = goal.select(valid).reached(model.select(valid)(adversarial[valid]).argmax(1))
            self._keep(rows[succeeded], adversarial.detach()[succeeded], tried[succeeded])
        return succeeded

    def _keep(self, rows: Tensor, found: Tensor, tried: Tensor) -> None:
        """Keep adversarial images, with the smallest radius of the grid that contains them."""
        size = self.budget.ball.size(found - self.images[rows])[:, None]
        is_inside = size <= self.budget.ball.max_size(self.radii[rows], found[0].numel() if len(found) else 0)
        self.smallest[rows] = torch.minimum(is_inside.int().argmax(1), tried)
        self.best[rows] = found

    def images_within(self, budget: Budget) -> Tensor:
        """Return the adversarial images that lie inside a budget, and clean images where none does."""
        inside = budget.ball.size(self.best - self.images) <= budget.max_size(self.images)
        return torch.where(inside[:, None, None, None], self.best, self.images)


class WorstCase(Attack):
    """Worst case over several attacks: each runs on the samples that survived the previous ones."""

    def __init__(self, attacks: Sequence[Attack]) -> None:
        self.inner_attacks = tuple(attacks)
        self.randomised = any(attack.randomised for attack in attacks)
        self.goals = tuple(goal for goal in type(self).goals if all(goal in attack.goals for attack in attacks))
        self.norms = tuple(norm for norm in NORMS if all(norm in attack.norms for attack in attacks))
        self.surrogates = tuple(dict.fromkeys(name for attack in attacks for name in attack.surrogates))
        self.passes = sum(attack.passes for attack in attacks)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the adversarial image of the first attack that succeeded, or the clean image."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the smallest adversarial image inside each budget, over all attacks."""
        radii = torch.stack([budget.radius(images).flatten() for budget in budgets], 1)
        bisection = RadiusBisection.start(model, images, goal, draws, budgets[-1], radii)
        for attack in self.inner_attacks:
            bisection.search(attack)
        for budget in budgets:
            yield bisection.images_within(budget)


class MinimalEps(Attack):
    """The smallest eps at which a fixed-budget attack succeeds, by bisection up to the largest eps."""

    minimises_norm = True

    def __init__(self, attack: Attack, *, halvings: int) -> None:
        self.inner_attacks = (attack,)
        self.randomised, self.goals, self.norms = attack.randomised, attack.goals, attack.norms
        self.surrogates = attack.surrogates
        self.halvings = halvings
        self.passes = attack.passes * (halvings + 1)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the closest adversarial image found inside the budget, or the clean image."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the closest adversarial image for each budget that contains it; one search serves all budgets."""
        largest = max(budgets, key=lambda budget: budget.eps)
        shares = torch.arange(1, 2**self.halvings + 1, device=images.device) / 2**self.halvings
        radii = largest.radius(images).flatten()[:, None] * shares
        bisection = RadiusBisection.start(model, images, goal, draws, largest, radii)
        bisection.search(self.inner_attacks[0])
        for budget in budgets:
            yield bisection.images_within(budget)


@ATTACKS.register("worst-case")
def worst_case(
    *,
    attacks: Annotated[list[InnerAttack], Field(min_length=1, description="attacks, in the order they run")] = ["bim"],  # noqa: B006
) -> Attack:
    """Worst case over several attacks: each runs on the survivors of the previous ones."""
    attack = WorstCase([build_inner_attack(inner) for inner in attacks])
    if not attack.goals or not attack.norms:
        raise UserError("attacks: they have no goal or no norm in common.")
    return attack


@ATTACKS.register("minimal")
def minimal(
    *,
    attack: InnerAttack = "pgd",
    halvings: Annotated[int, Field(ge=1, le=20, description="precision: the largest eps / 2^halvings")] = 7,
) -> Attack:
    """Smallest eps at which an attack succeeds, per sample, by bisection below the largest eps."""
    return MinimalEps(build_inner_attack(attack), halvings=halvings)
