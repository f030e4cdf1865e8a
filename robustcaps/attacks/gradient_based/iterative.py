"""Single-step and iterative gradient attacks: FGSM, BIM, momentum, PGD and PGD with EOT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, project, random_start
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.gradients import reaches_goal, value_and_gradient
from robustcaps.attacks.losses import Loss, LossName, resolve_loss
from robustcaps.attacks.norms import NORMS
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

Steps = Annotated[int, Field(ge=1, description="gradient steps")]
StepSize = Annotated[
    float | None, Field(gt=0, le=1, description="step size as a fraction of eps; by default the steps cross the ball")
]
Restarts = Annotated[int, Field(ge=1, description="random restarts; the first success is kept")]
EarlyStop = Annotated[bool, Field(description="stop on a sample once an iterate reaches the goal")]
Eot = Annotated[int, Field(ge=1, description="gradients averaged per step (expectation over transformation)")]
Decay = Annotated[float, Field(ge=0, description="decay factor of the accumulated gradient")]


class SingleStepAttack(Attack):
    """One gradient step from the clean image; one gradient serves every eps of a sweep."""

    norms = ("linf", "l2", "l1")

    def __init__(self, *, loss: LossName | Loss = "log-odds") -> None:
        self.loss = resolve_loss(loss)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the images after the step."""
        return next(self.run_sweep(model, images, goal, [budget], draws))

    def run_sweep(
        self,
        model: CountedModel,
        images: Tensor,
        goal: Goal,
        budgets: Sequence[Budget],
        draws: Draws,  # noqa: ARG002
    ) -> Iterator[Tensor]:
        """Yield the images after the step for each budget, all from one gradient."""
        _, gradient, _ = value_and_gradient(self.loss, model, images, goal)
        ascents = {ball: ball.ascent(gradient) for ball in dict.fromkeys(budget.ball for budget in budgets)}
        for budget in budgets:
            yield (images + budget.radius(images) * ascents[budget.ball]).clamp_(0.0, 1.0)


class IterativeAttack(Attack):
    """Projected gradient steps inside the ball and [0,1], with optional momentum, restarts and EOT."""

    norms = tuple(NORMS)

    def __init__(
        self,
        *,
        loss: LossName | Loss = "log-odds",
        steps: int,
        step: float | None = None,
        random_start: bool,
        restarts: int = 1,
        early_stop: bool = True,
        decay: float = 0.0,
        eot: int = 1,
    ) -> None:
        self.loss = resolve_loss(loss)
        self.steps = steps
        self.step = _default_step(steps, random_start=random_start) if step is None else step
        self.randomised = random_start
        self.restarts = restarts
        self.passes = 1.0 + 3.0 * steps * restarts * eot
        self.early_stop = early_stop
        self.decay = decay
        self.eot = eot

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the iterate that reached the goal, else the last one of the last restart."""
        best = images.clone()
        remaining = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for restart in range(self.restarts):
            if len(remaining) == 0:
                break
            subset = model.select(remaining), images[remaining], goal.select(remaining)
            best[remaining] = self._ascend(*subset, budget.select(remaining), draws.select(remaining), restart)
            if restart + 1 < self.restarts:
                remaining = remaining[~reaches_goal(subset[0], best[remaining], subset[2], eot=self.eot)]
        return best

    def _ascend(
        self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws, restart: int
    ) -> Tensor:
        """Run the steps of one restart; samples that reached the goal leave the batch."""
        ball, radius = budget.ball, budget.radius(images)
        step = self.step * radius
        current = random_start(images, budget, draws, restart) if self.randomised else images.clone()
        found, accumulated = current.clone(), torch.zeros_like(images)
        rows = torch.arange(len(images), device=images.device)
        for _ in range(self.steps):
            _, gradient, logits = value_and_gradient(self.loss, model, current, goal, eot=self.eot)
            if self.early_stop:
                reached = reaches_goal(model, current, goal, eot=self.eot, logits=logits)
                if bool(reached.any()):
                    found[rows[reached]] = current[reached]
                    kept = torch.nonzero(~reached).flatten()
                    rows, model, goal = rows[kept], model.select(kept), goal.select(kept)
                    parts = (images, current, radius, step, accumulated, gradient)
                    images, current, radius, step, accumulated, gradient = (part[kept] for part in parts)
            if len(rows) == 0:
                break
            accumulated = self._accumulate(accumulated, gradient).contiguous()  # norms are summed in this order
            uphill = accumulated * can_move(current, accumulated) if ball.is_sparse else accumulated
            moved = current + ball.ascent(uphill).mul_(step)
            current = project(moved, images, ball, radius)
        found[rows] = current
        return found

    def _accumulate(self, accumulated: Tensor, gradient: Tensor) -> Tensor:
        """Return decay * g + gradient / |gradient|_1 (Dong et al. 2018, eq. 6), or the gradient if decay is 0."""
        if not self.decay:
            return gradient
        return self.decay * accumulated + gradient / gradient.abs().sum((1, 2, 3), keepdim=True).clamp_min(1e-38)


def can_move(images: Tensor, direction: Tensor) -> Tensor:
    """Return a mask of the values that can move in a direction without leaving [0,1]."""
    return torch.where(direction > 0, images < 1.0, images > 0.0)


def _default_step(steps: int, *, random_start: bool) -> float:
    """Return the step size as a fraction of eps; the steps can cross the ball, with slack after a random start."""
    return min(1.0, max(2.5 / steps, 0.1) if random_start else 2.0 / steps)


@ATTACKS.register("fgsm")
def fgsm(*, loss: LossName = "log-odds") -> Attack:
    """Fast gradient (sign) method: one step of size eps (Goodfellow et al. 2015)."""
    return SingleStepAttack(loss=loss)


@ATTACKS.register("bim")
def bim(
    *, loss: LossName = "log-odds", steps: Steps = 10, step: StepSize = None, early_stop: EarlyStop = True, eot: Eot = 1
) -> Attack:
    """Basic iterative method: projected gradient steps from the clean image (Kurakin et al. 2017)."""
    return IterativeAttack(loss=loss, steps=steps, step=step, random_start=False, early_stop=early_stop, eot=eot)


@ATTACKS.register("momentum")
def momentum(
    *,
    loss: LossName = "log-odds",
    steps: Steps = 10,
    step: StepSize = None,
    decay: Decay = 1.0,
    early_stop: EarlyStop = True,
    eot: Eot = 1,
) -> Attack:
    """Momentum iterative method (MI-FGSM): steps along accumulated gradients (Dong et al. 2018)."""
    return IterativeAttack(
        loss=loss, steps=steps, step=step, random_start=False, early_stop=early_stop, decay=decay, eot=eot
    )


@ATTACKS.register("pgd")
def pgd(
    *,
    loss: LossName = "log-odds",
    steps: Steps = 20,
    step: StepSize = None,
    restarts: Restarts = 1,
    early_stop: EarlyStop = True,
    eot: Eot = 1,
) -> Attack:
    """Projected gradient descent from random starts (Madry et al. 2018)."""
    return IterativeAttack(
        loss=loss, steps=steps, step=step, random_start=True, restarts=restarts, early_stop=early_stop, eot=eot
    )


@ATTACKS.register("eot-pgd")
def eot_pgd(
    *,
    loss: LossName = "log-odds",
    steps: Steps = 20,
    step: StepSize = None,
    restarts: Restarts = 1,
    early_stop: EarlyStop = True,
    eot: Eot = 10,
) -> Attack:
    """PGD with expectation over transformation, for randomised models (Athalye et al. 2018)."""
    return pgd(loss=loss, steps=steps, step=step, restarts=restarts, early_stop=early_stop, eot=eot)
