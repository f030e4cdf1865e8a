"""Gradient attacks as settings of one loop (a loss, a norm, steps, a start): FGSM, BIM, PGD differ in nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budget import Budget
from robustcaps.attacks.counted import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import LOSSES, Loss, LossName
from robustcaps.randomness import Draws
from robustcaps.registry import ATTACKS

Steps = Annotated[int, Field(ge=1, description="gradient steps")]
StepShare = Annotated[
    float | None, Field(gt=0, le=1, description="step size as a share of eps; default: enough to cross the ball")
]
Restarts = Annotated[int, Field(ge=1, description="independent random starts; the first that succeeds is kept")]
EarlyStop = Annotated[bool, Field(description="stop on a sample as soon as an iterate reaches the goal")]


def value_and_gradient(
    loss: Loss, model: CountedModel, images: Tensor, goal: Goal
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the objective (n,), its gradient in the images, and the logits if the loss computed them."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        values, logits = loss(model, images, goal)
        (gradient,) = torch.autograd.grad(values.sum(), images)
    return values.detach(), gradient, None if logits is None else logits.detach()


class OneStep(Attack):
    """One step along the gradient at the image itself; the gradient serves every eps of a sweep."""

    def __init__(self, *, loss: LossName = "ce") -> None:
        self.loss = LOSSES[loss]

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
        for budget in budgets:
            step = budget.radius(images) * budget.ball.ascent(gradient)
            yield (images + step).clamp(0.0, 1.0)


class Iterative(Attack):
    """Repeated steps along the gradient, each projected back into the ball and [0,1]."""

    def __init__(
        self,
        *,
        loss: LossName = "ce",
        steps: int,
        step: float | None = None,
        random_start: bool,
        restarts: int = 1,
        early_stop: bool = True,
    ) -> None:
        self.loss = LOSSES[loss]
        self.steps = steps
        self.step = _default_step(steps, random_start=random_start) if step is None else step
        self.randomised = random_start
        self.restarts = restarts
        self.passes = 1.0 + 3.0 * steps * restarts
        self.early_stop = early_stop

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the iterate that reached the goal, else the last one of the last restart."""
        best = images.clone()
        left = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for restart in range(self.restarts):
            if len(left) == 0:
                break
            part = model.select(left), images[left], goal.select(left)
            best[left] = self._climb(*part, budget, draws.select(left), restart)
            if restart + 1 < self.restarts:
                with torch.no_grad():
                    reached = part[2].reached(part[0](best[left]).argmax(1))
                left = left[~reached]
        return best

    def _climb(
        self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws, restart: int
    ) -> Tensor:
        """Run the steps from one start; samples that reached the goal leave the batch."""
        ball, radius = budget.ball, budget.radius(images)
        current = images.clone()
        if self.randomised:
            offset = ball.random(draws, tuple(images.shape[1:]), stream=restart)
            current = (images + radius * offset).clamp(0.0, 1.0)
        active = torch.arange(len(images), device=images.device)
        for _ in range(self.steps):
            at = current[active]
            _, gradient, logits = value_and_gradient(self.loss, model.select(active), at, goal.select(active))
            if self.early_stop:
                if logits is None:
                    with torch.no_grad():
                        logits = model.select(active)(at)
                going = ~goal.select(active).reached(logits.argmax(1))
                active, at, gradient = active[going], at[going], gradient[going]
            if len(active) == 0:
                break
            moved = at + self.step * radius[active] * ball.ascent(gradient)
            inside = images[active] + ball.project(moved - images[active], radius[active])
            current[active] = inside.clamp(0.0, 1.0)
        return current


def _default_step(steps: int, *, random_start: bool) -> float:
    """Return the step size as a share of eps: enough to cross the ball, and from a random start to come back again."""
    return min(1.0, max(2.5 / steps, 0.1) if random_start else 2.0 / steps)


@ATTACKS.register("fgsm")
def fgsm(*, loss: LossName = "ce") -> Attack:
    """Fast gradient (sign) method: one step of size eps (Goodfellow et al. 2015)."""
    return OneStep(loss=loss)


@ATTACKS.register("bim")
def bim(*, loss: LossName = "ce", steps: Steps = 10, step: StepShare = None, early_stop: EarlyStop = True) -> Attack:
    """Basic iterative method: small steps from the image itself (Kurakin et al. 2017)."""
    return Iterative(loss=loss, steps=steps, step=step, random_start=False, early_stop=early_stop)


@ATTACKS.register("pgd")
def pgd(
    *,
    loss: LossName = "ce",
    steps: Steps = 20,
    step: StepShare = None,
    restarts: Restarts = 1,
    early_stop: EarlyStop = True,
) -> Attack:
    """Projected gradient descent: small steps from random points of the ball (Madry et al. 2018)."""
    return Iterative(loss=loss, steps=steps, step=step, random_start=True, restarts=restarts, early_stop=early_stop)
