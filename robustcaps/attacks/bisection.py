"""The smallest ball in which an attack succeeds, sample by sample: bisection over a ladder of radii.

An adversarial image of a small ball is one of every larger ball, so an attack need not be run for each eps. What is
assumed is that an attack which fails in a ball fails in smaller ones, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, Radii, reach
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.guard import proposal_violations
from robustcaps.attacks.minimum_norm import Closest
from robustcaps.attacks.nested import Inner, build_inner
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


@dataclass(frozen=True, eq=False)
class Ladder:
    """Samples on their way down: the lowest rung each was fooled on, and the image that did it."""

    model: CountedModel
    images: Tensor
    goal: Goal
    draws: Draws
    budget: Budget
    """The norm, and the eps at the top."""
    rungs: Tensor
    """(n, K): the radii to try, rising."""
    fooled: Tensor
    """(n,): the lowest rung with an adversarial image, K where there is none."""
    best: Tensor
    """(n, channels, height, width): that image, else the image itself."""

    @classmethod
    def begin(
        cls, model: CountedModel, images: Tensor, goal: Goal, draws: Draws, budget: Budget, rungs: Tensor
    ) -> Ladder:
        """Return a ladder that nobody has been fooled on."""
        nobody = torch.full((len(images),), rungs.shape[1], device=images.device)
        return cls(model, images, goal, draws, budget, rungs, nobody, images.clone())

    def descend(self, attack: Attack) -> None:
        """Find the lowest rung on which the attack succeeds, below those reached so far; a closest one at once."""
        below, searches = torch.full_like(self.fooled, -1), isinstance(attack, (Closest, Smallest))
        while True:
            rows = torch.nonzero(self.fooled - below > 1).flatten()
            if len(rows) == 0:
                return
            middle = (self.fooled[rows] + below[rows]) // 2
            tried = self.fooled[rows] - 1 if searches else middle
            hit = self._try(attack, rows, tried)
            below[rows] = torch.where(hit, below[rows], tried)
            if searches:
                return

    def _try(self, attack: Attack, rows: Tensor, tried: Tensor) -> Tensor:
        """Run an attack on some samples, each on its rung, and return which it fooled (a mask over `rows`)."""
        model, images, goal = self.model.select(rows), self.images[rows], self.goal.select(rows)
        radii = self.rungs[rows, tried][:, None, None, None]
        budget = Radii(self.budget.eps, self.budget.norm, radii=radii)
        proposed = attack.run(model, images, goal, budget, self.draws.select(rows))
        broken = proposal_violations(proposed, images, budget)
        model.complain(broken)
        hit = torch.tensor([not name for name in broken], device=rows.device)
        if bool(hit.any()):
            sound = hit.nonzero().flatten()
            with torch.no_grad():
                hit[sound] = goal.select(sound).reached(model.select(sound)(proposed[sound]).argmax(1))
            self._keep(rows[hit], proposed.detach()[hit], tried[hit])
        return hit

    def _keep(self, rows: Tensor, found: Tensor, tried: Tensor) -> None:
        """Keep adversarial images, on the lowest rung that they fit on."""
        size = self.budget.ball.size(found - self.images[rows])[:, None]
        fits = size <= reach(self.rungs[rows])
        self.fooled[rows] = torch.minimum(fits.int().argmax(1), tried)
        self.best[rows] = found

    def at(self, budget: Budget) -> Tensor:
        """Return the adversarial images that lie inside a budget, and the images themselves where none does."""
        inside = budget.ball.size(self.best - self.images) <= budget.reach(self.images)
        return torch.where(inside[:, None, None, None], self.best, self.images)


class WorstCase(Attack):
    """Several attacks on each other's survivors; what one finds counts for all larger eps, too."""

    def __init__(self, attacks: Sequence[Attack]) -> None:
        self.parts = tuple(attacks)
        self.randomised = any(part.randomised for part in attacks)
        self.goals = tuple(goal for goal in type(self).goals if all(goal in part.goals for part in attacks))
        self.norms = tuple(norm for norm in type(self).norms if all(norm in part.norms for part in attacks))
        self.surrogates = tuple(dict.fromkeys(name for part in attacks for name in part.surrogates))
        self.passes = sum(part.passes for part in attacks)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the first attack's image that reached the goal, else the images."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the best image inside each budget; every attack tries to get below the rung that others reached."""
        rungs = torch.stack([budget.radius(images).flatten() for budget in budgets], 1)
        ladder = Ladder.begin(model, images, goal, draws, budgets[-1], rungs)
        for part in self.parts:
            ladder.descend(part)
        for budget in budgets:
            yield ladder.at(budget)


class Smallest(Attack):
    """The smallest perturbation with which an attack of fixed eps succeeds, by bisection up to the largest eps."""

    closest = True

    def __init__(self, attack: Attack, *, halvings: int) -> None:
        self.parts = (attack,)
        self.randomised, self.goals, self.norms = attack.randomised, attack.goals, attack.norms
        self.surrogates = attack.surrogates
        self.halvings = halvings
        self.passes = attack.passes * (halvings + 1)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the closest adversarial image found inside the budget, else the images."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the closest adversarial image where it lies inside the budget; one search serves all."""
        top = max(budgets, key=lambda budget: budget.eps)
        shares = torch.arange(1, 2**self.halvings + 1, device=images.device) / 2**self.halvings
        ladder = Ladder.begin(model, images, goal, draws, top, top.radius(images).flatten()[:, None] * shares)
        ladder.descend(self.parts[0])
        for budget in budgets:
            yield ladder.at(budget)


@ATTACKS.register("worst-case")
def worst_case(
    *,
    attacks: Annotated[list[Inner], Field(min_length=1, description="tried one after the other")] = ["bim"],  # noqa: B006
) -> Attack:
    """Several attacks: survivors of one go to the next, and a success counts for every larger eps."""
    built = [build_inner(inner) for inner in attacks]
    made = WorstCase(built)
    if not made.goals or not made.norms:
        raise UserError("attacks: these have no goal or no norm in common.")
    return made


@ATTACKS.register("minimal")
def minimal(
    *,
    attack: Inner = "pgd",
    halvings: Annotated[int, Field(ge=1, le=20, description="precision: the largest eps / 2^halvings")] = 7,
) -> Attack:
    """The smallest eps, per sample, with which an attack succeeds: bisection below the largest eps."""
    return Smallest(build_inner(attack), halvings=halvings)
