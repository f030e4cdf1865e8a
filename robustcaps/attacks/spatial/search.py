"""Search for the worst transformation of each sample: a grid first, then refinement around its worst point.

The sets of a sweep contain each other, so a transformation that fools a model at one eps does so at every larger one,
and the worst that fooled nobody is where the next search goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import log_odds_loss
from robustcaps.attacks.spatial.affine import SCALE, SHEAR, TRANSLATION
from robustcaps.attacks.spatial.budgets import TransformationBudget, TransformedImages
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

FIRST_STEP = 0.25
"""Size of the first gradient step, as a share of the limits; steps shrink to 0 evenly."""


@dataclass(frozen=True, eq=False)
class WorstTransformations:
    """The worst parameters of each sample so far, and which samples have not reached the goal with them."""

    model: CountedModel
    images: Tensor
    goal: Goal
    draws: Draws
    parameters: Tensor
    """(n, parameters)"""
    objective: Tensor
    """(n,)"""
    reached: Tensor
    """(n,)"""

    @classmethod
    def start(cls, model: CountedModel, images: Tensor, goal: Goal, draws: Draws, count: int) -> WorstTransformations:
        """Return the state before anything was tried."""
        parameters = torch.zeros(len(images), count, dtype=torch.float64, device=images.device)
        objective = torch.full((len(images),), -torch.inf, device=images.device)
        return cls(model, images, goal, draws, parameters, objective, torch.zeros_like(objective, dtype=torch.bool))

    @property
    def remaining(self) -> Tensor:
        """The samples that have not reached the goal."""
        return torch.nonzero(~self.reached).flatten()

    def points(self, budget: TransformationBudget, rows: Tensor) -> Tensor:
        """Return the worst points of some samples, in the cube of their limits."""
        return budget.select(rows).points_of(self.images[rows], self.parameters[rows])

    def consider(self, budget: TransformationBudget, rows: Tensor, points: Tensor) -> None:
        """Try points (rows, parameters) of some samples and keep those that are worse, or reach the goal."""
        own, images, goal = budget.select(rows), self.images[rows], self.goal.select(rows)
        parameters = own.at(images, points)
        with torch.no_grad():
            values, logits = log_odds_loss(self.model.select(rows), own.transform(images, parameters), goal)
        self._keep(rows, parameters, values, goal.reached(logits.argmax(1)))

    def gradient(self, budget: TransformationBudget, rows: Tensor, points: Tensor) -> Tensor:
        """Return the gradient of the objective in points, (rows, parameters), and consider them on the way."""
        own, images, goal = budget.select(rows), self.images[rows], self.goal.select(rows)
        with torch.enable_grad():
            points = points.detach().requires_grad_()
            parameters = own.at(images, points)
            values, logits = log_odds_loss(self.model.select(rows), own.transform(images, parameters), goal)
            (gradient,) = torch.autograd.grad(values.sum(), points)
        self._keep(rows, parameters.detach(), values.detach(), goal.reached(logits.argmax(1)))
        return gradient

    def _keep(self, rows: Tensor, parameters: Tensor, values: Tensor, reached: Tensor) -> None:
        better = reached | (values > self.objective[rows])
        self.parameters[rows[better]], self.objective[rows[better]] = parameters[better], values[better]
        self.reached[rows] = reached


class SpatialAttack(Attack):
    """Base class of searches over transformations. A subclass implements `refine`."""

    levels: int

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> TransformedImages:
        """Return the worst transformation of each image that was found."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[TransformedImages]:
        """Yield the worst transformations for each budget; a search goes on where that of a smaller eps ended."""
        worst: WorstTransformations | None = None
        for budget in budgets:
            if not isinstance(budget, TransformationBudget):
                raise TypeError(f"{self.name} needs a set of transformations, not a ball in {budget.norm}.")
            if worst is None:
                worst = WorstTransformations.start(model, images, goal, draws, len(budget.parameter_names))
            if budget.eps:
                for point in budget.grid(self.levels).to(images.device):
                    rows = worst.remaining
                    if len(rows):
                        worst.consider(budget, rows, point.expand(len(rows), -1))
                self.refine(worst, budget)
            parameters = worst.parameters.clone()
            yield TransformedImages(budget.transform(images, parameters), parameters)

    @abstractmethod
    def refine(self, worst: WorstTransformations, budget: TransformationBudget) -> None:
        """Go on from the worst points of the grid."""


class AffineAttack(SpatialAttack):
    """A grid of rotations and translations, then gradient steps in all parameters, then random points."""

    norms = ("affine",)
    default_norm = "affine"
    randomised = True

    def __init__(self, *, levels: int, steps: int, tries: int, **ranges: float) -> None:
        self.levels, self.steps, self.tries, self.ranges = levels, steps, tries, ranges
        self.passes = 9.0 * levels + 3.0 * steps + tries

    def refine(self, worst: WorstTransformations, budget: TransformationBudget) -> None:
        """Take signed gradient steps from the worst point, then try random points of the whole set."""
        rows = worst.remaining
        points = worst.points(budget, rows)
        for step in range(self.steps):
            if len(rows) == 0:
                break
            gradient = worst.gradient(budget, rows, points)
            size = FIRST_STEP * (1.0 - step / self.steps)
            unsuccessful = ~worst.reached[rows]
            points = (points + size * gradient.sign()).clamp(-1.0, 1.0)[unsuccessful]
            rows = rows[unsuccessful]
        for attempt in range(self.tries):
            rows = worst.remaining
            if len(rows) == 0:
                break
            draws = worst.draws.select(rows).uniform((worst.parameters.shape[1],), stream=attempt)
            worst.consider(budget, rows, 2.0 * draws.double() - 1.0)


class ViewpointAttack(SpatialAttack):
    """A grid of views, then random views from ever smaller boxes around the worst one."""

    norms = ("viewpoint",)
    default_norm = "viewpoint"
    randomised = True

    def __init__(self, *, levels: int, rounds: int, tries: int) -> None:
        self.levels, self.rounds, self.tries = levels, rounds, tries
        self.passes = 9.0 * levels + rounds * tries

    def refine(self, worst: WorstTransformations, budget: TransformationBudget) -> None:
        """Try views around the worst one; every round halves the box that they come from."""
        for stream in range(self.rounds * self.tries):
            rows = worst.remaining
            if len(rows) == 0:
                break
            half_width = 0.5 ** (1 + stream // self.tries)
            draws = worst.draws.select(rows).uniform((worst.parameters.shape[1],), stream=stream)
            nearby = worst.points(budget, rows) + half_width * (2.0 * draws.double() - 1.0)
            worst.consider(budget, rows, nearby.clamp(-1.0, 1.0))


Levels = Annotated[int, Field(ge=2, description="values of the first angle in the grid; others have three or one")]


@ATTACKS.register("affine")
def affine(
    *,
    grid: Levels = 5,
    steps: Annotated[int, Field(ge=0, description="gradient steps from the worst point of the grid")] = 10,
    tries: Annotated[int, Field(ge=0, description="random points after that")] = 20,
    translation: Annotated[
        float, Field(ge=0, description="range of translations at eps 30, as a share of the image's size")
    ] = TRANSLATION,
    scale: Annotated[float, Field(ge=0, description="range of the change of size at eps 30, as a share")] = SCALE,
    shear: Annotated[float, Field(ge=0, description="range of shearing at eps 30, in degrees")] = SHEAR,
) -> Attack:
    """Worst affine map: rotation by up to eps degrees, translation, scale and shear (Engstrom et al. 2019)."""
    return AffineAttack(levels=grid, steps=steps, tries=tries, translation=translation, scale=scale, shear=shear)


@ATTACKS.register("viewpoint")
def viewpoint(
    *,
    grid: Levels = 5,
    rounds: Annotated[int, Field(ge=0, description="rounds of refinement, each in a box of half the width")] = 3,
    tries: Annotated[int, Field(ge=1, description="random views per round")] = 8,
) -> Attack:
    """Worst view of a rendered object, with camera and light moved by up to eps degrees; needs 'toys'."""
    return ViewpointAttack(levels=grid, rounds=rounds, tries=tries)
