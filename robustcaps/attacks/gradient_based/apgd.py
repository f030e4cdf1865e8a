"""Auto-PGD: projected gradient ascent with momentum and step sizes adapted per sample (Croce and Hein 2020, alg. 1)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, project, random_start
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal, TowardsClass, Untargeted, likeliest_wrong_classes
from robustcaps.attacks.gradient_based.iterative import Eot, Restarts
from robustcaps.attacks.gradients import reaches_goal, value_and_gradient
from robustcaps.attacks.losses import DLR_CLASSES, Loss, LossName, resolve_loss, targeted_dlr_loss
from robustcaps.attacks.norms import Norm
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

ALPHA = 0.75
"""Weight of the gradient step in an update; the rest repeats the previous update (momentum)."""
RHO = 0.75
"""The step size is halved unless at least this fraction of steps increased the objective."""

Targets = Annotated[int, Field(ge=1, description="wrong classes that are tried, the likeliest first")]
ApgdSteps = Annotated[int, Field(ge=1, description="gradient steps; their sizes adapt to each sample")]


@dataclass(eq=False)
class _ApgdState:
    """State of the samples that have not reached the goal; all fields are (n, ...)."""

    row: Tensor
    image: Tensor
    """x^(k)."""
    previous: Tensor
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
    increases: Tensor
    """Number of steps that increased f since the last checkpoint."""
    halved: Tensor
    """Whether eta was halved at the last checkpoint."""
    best_at_checkpoint: Tensor
    """f_max at the last checkpoint."""

    @classmethod
    def start(cls, image: Tensor, radius: Tensor) -> _ApgdState:
        """Return the initial state, with steps of twice the radius."""
        row = torch.arange(len(image), device=image.device)
        lowest = torch.full_like(image[:, 0, 0, 0], -torch.inf)
        zeros, zero_counts = torch.zeros_like(image), torch.zeros_like(row)
        return cls(
            row=row,
            image=image,
            previous=image,
            gradient=zeros,
            value=lowest,
            best_image=image,
            best_gradient=zeros,
            best_value=lowest,
            step=2.0 * radius,
            increases=zero_counts,
            halved=zero_counts.bool(),
            best_at_checkpoint=lowest,
        )

    def select(self, rows: Tensor) -> _ApgdState:
        """Return the state of a subset of the samples."""
        return _ApgdState(*(getattr(self, each.name)[rows] for each in fields(self)))

    def update_best(self, value: Tensor, gradient: Tensor) -> None:
        """Store the objective and its gradient at x^(k), and update x_max and f_max."""
        self.increases = self.increases + (value > self.value)
        better = ~(value <= self.best_value)  # NaN counts as best, so that the guard reports it
        self.best_image = _where(better, self.image, self.best_image)
        self.best_gradient = _where(better, gradient, self.best_gradient)
        self.best_value = torch.where(better, value, self.best_value)
        self.value, self.gradient = value, gradient

    def adapt_step(self, steps_since: int) -> None:
        """Halve eta and return to x_max where few steps increased f (condition 1) or f_max stagnated (condition 2)."""
        few_increases = self.increases < RHO * steps_since
        stagnated = ~self.halved & (self.best_value == self.best_at_checkpoint)
        self.halved = few_increases | stagnated
        self.step = torch.where(self.halved[:, None, None, None], self.step / 2.0, self.step)
        self.image = _where(self.halved, self.best_image, self.image)
        self.gradient = _where(self.halved, self.best_gradient, self.gradient)
        self.value = torch.where(self.halved, self.best_value, self.value)
        self.best_at_checkpoint = self.best_value
        self.increases = torch.zeros_like(self.increases)

    def step_forward(self, images: Tensor, ball: Norm, radius: Tensor, alpha: float) -> None:
        """Go to x^(k+1): a projected gradient step with weight alpha, plus momentum with weight 1 - alpha."""
        stepped = project(self.image + self.step * ball.ascent(self.gradient), images, ball, radius)
        moved = self.image + alpha * (stepped - self.image) + (1.0 - alpha) * (self.image - self.previous)
        self.previous, self.image = self.image, project(moved, images, ball, radius)


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(mask[:, None, None, None], new, old)


class AutoPgd(Attack):
    """Auto-PGD: starts with steps of twice the radius, halves them on stagnation and continues from the best point."""

    randomised = True

    def __init__(self, *, loss: LossName | Loss, steps: int, restarts: int, eot: int) -> None:
        self.loss = resolve_loss(loss)
        self.steps = steps
        self.checkpoints = checkpoints(steps)
        self.restarts = restarts
        self.eot = eot
        self.passes = 3.0 * (steps + 1) * restarts * eot

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the first iterate that reached the goal, else the one with the highest objective of all restarts."""
        best, best_value = images.clone(), torch.full_like(images[:, 0, 0, 0], -torch.inf)
        remaining = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for restart in range(self.restarts):
            if len(remaining) == 0:
                break
            subset = model.select(remaining), images[remaining], goal.select(remaining), budget.select(remaining)
            found, value = self._ascend(*subset, draws.select(remaining), restart)
            better = ~(value <= best_value[remaining])
            best[remaining[better]], best_value[remaining[better]] = found[better], value[better]
            remaining = remaining[best_value[remaining] < torch.inf]
        return best

    def _ascend(
        self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws, restart: int
    ) -> tuple[Tensor, Tensor]:
        """Run one restart; return the best images and their objectives, infinite where they reached the goal."""
        ball, radius = budget.ball, budget.radius(images)
        state = _ApgdState.start(random_start(images, budget, draws, restart), radius)
        best, best_value = images.clone(), torch.full_like(state.value, torch.inf)
        last_checkpoint = 0
        for k in range(self.steps + 1):
            subset = model.select(state.row), state.image, goal.select(state.row)
            value, gradient, logits = value_and_gradient(self.loss, *subset, eot=self.eot)
            state.update_best(value, gradient)
            done = reaches_goal(*subset, eot=self.eot, logits=logits)
            best[state.row[done]] = state.image[done]
            state = state.select(~done)
            if len(state.row) == 0 or k == self.steps:
                break
            if k in self.checkpoints:
                state.adapt_step(k - last_checkpoint)
                last_checkpoint = k
            state.step_forward(images[state.row], ball, radius[state.row], alpha=ALPHA if k else 1.0)
        best[state.row], best_value[state.row] = state.best_image, state.best_value
        return best, best_value


class TargetedAutoPgd(AutoPgd):
    """Auto-PGD towards each of the likeliest wrong classes in turn, on the samples that still are classified correctly.

    Any wrong class is a success.
    """

    goals = (Untargeted,)
    skips_few_classes = False
    """Whether it does nothing, and warns, if the model has fewer classes than its loss needs, instead of an error."""

    def __init__(self, *, steps: int, restarts: int, targets: int) -> None:
        super().__init__(loss=targeted_dlr_loss, steps=steps, restarts=restarts, eot=1)
        self.targets = targets
        self.passes *= targets

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the first iterate that is misclassified, else the last of the ascents' results."""
        found = images.clone()
        if not budget.eps:
            return found
        with torch.no_grad():
            logits = model(images)
        if logits.shape[1] < DLR_CLASSES and self.skips_few_classes:
            warnings.warn(
                f"AutoAttack without APGD-T: its loss needs {DLR_CLASSES} classes, the model has {logits.shape[1]}.",
                stacklevel=2,
            )
            return found
        remaining = torch.nonzero(~goal.reached(logits.argmax(1))).flatten()
        for target in likeliest_wrong_classes(logits, goal.classes, self.targets).unbind(1):
            if len(remaining) == 0:
                break
            towards = TowardsClass(goal.classes[remaining], target[remaining])
            subset = model.select(remaining), images[remaining], towards, budget.select(remaining)
            found[remaining] = super().run(*subset, draws.select(remaining))
            with torch.no_grad():
                predictions = model.select(remaining)(found[remaining]).argmax(1)
            remaining = remaining[~goal.select(remaining).reached(predictions)]
        return found


def checkpoints(steps: int) -> set[int]:
    """Return the checkpoints w_j = ceil(p_j N): p_0 = 0, p_1 = 0.22, intervals shrinking by 0.03 down to 0.06."""
    previous, fraction = 0.0, 0.22
    found = {0}
    while fraction < 1.0:
        found.add(math.ceil(round(fraction * steps, 6)))
        previous, fraction = fraction, fraction + max(fraction - previous - 0.03, 0.06)
    return found


@ATTACKS.register("apgd-ce")
def apgd_ce(*, steps: ApgdSteps = 50, restarts: Restarts = 1, eot: Eot = 1) -> Attack:
    """Auto-PGD on the cross-entropy, in its log-odds form that does not underflow (Croce and Hein 2020)."""
    return AutoPgd(loss="log-odds", steps=steps, restarts=restarts, eot=eot)


@ATTACKS.register("apgd-dlr")
def apgd_dlr(*, steps: ApgdSteps = 50, restarts: Restarts = 1, eot: Eot = 1) -> Attack:
    """Auto-PGD on the difference of logits ratio, invariant to the scale of the logits (Croce and Hein 2020)."""
    return AutoPgd(loss="dlr", steps=steps, restarts=restarts, eot=eot)


@ATTACKS.register("apgd-t")
def apgd_t(*, steps: ApgdSteps = 100, restarts: Restarts = 1, targets: Targets = 9) -> Attack:
    """Auto-PGD on the targeted DLR loss, towards each of the likeliest wrong classes (Croce and Hein 2020)."""
    return TargetedAutoPgd(steps=steps, restarts=restarts, targets=targets)
