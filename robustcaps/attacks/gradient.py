"""Gradient attacks as settings of one loop: a loss, a norm, steps, a start, momentum, passes per gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import Loss, LossName, loss_named
from robustcaps.attacks.norms import Norm
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

Steps = Annotated[int, Field(ge=1, description="gradient steps")]
StepShare = Annotated[
    float | None, Field(gt=0, le=1, description="step size as a share of eps; default: enough to cross the ball")
]
Restarts = Annotated[int, Field(ge=1, description="independent random starts; the first that succeeds is kept")]
EarlyStop = Annotated[bool, Field(description="stop on a sample as soon as an iterate reaches the goal")]
Eot = Annotated[int, Field(ge=1, description="gradients averaged per step, for randomised models")]
Decay = Annotated[float, Field(ge=0, description="weight of the gradients gathered so far against the new one")]


def value_and_gradient(
    loss: Loss, model: CountedModel, images: Tensor, goal: Goal, *, passes: int = 1
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the objective (n,), its gradient in the images, and the logits if the loss computed them.

    Each is the mean over several passes, which differ for a randomised model: the expectation over transformation
    of Athalye et al. (2018).
    """
    images = images.detach().requires_grad_()
    runs = [_value_and_gradient_once(loss, model, images, goal) for _ in range(passes)]
    values, gradients, logits = zip(*runs, strict=True)
    known = [each for each in logits if each is not None]
    return _mean(values), _mean(gradients), _mean(known) if known else None


def _value_and_gradient_once(
    loss: Loss, model: CountedModel, images: Tensor, goal: Goal
) -> tuple[Tensor, Tensor, Tensor | None]:
    with torch.enable_grad():
        values, logits = loss(model, images, goal)
        (gradient,) = torch.autograd.grad(values.sum(), images)
    return values.detach(), gradient, None if logits is None else logits.detach()


@torch.no_grad()
def reached(model: CountedModel, images: Tensor, goal: Goal, *, passes: int, logits: Tensor | None = None) -> Tensor:
    """Return which images reach the goal, by their logits if known, else by passes of their own.

    For a randomised model the mean of several passes decides: one lucky pass is no success.
    """
    if logits is None:
        logits = _mean([model(images) for _ in range(passes)])
    return goal.reached(logits.argmax(1))


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors)).mean(0)


def inside(moved: Tensor, images: Tensor, ball: Norm, radius: Tensor) -> Tensor:
    """Return moved images drawn back into the ball around the images, and into [0,1]."""
    return (images + ball.project(moved - images, radius)).clamp(0.0, 1.0)


class OneStep(Attack):
    """One step along the gradient at the image itself; the gradient serves every eps of a sweep."""

    def __init__(self, *, loss: LossName | Loss = "ce") -> None:
        self.loss = loss_named(loss)

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
        loss: LossName | Loss = "ce",
        steps: int,
        step: float | None = None,
        random_start: bool,
        restarts: int = 1,
        early_stop: bool = True,
        decay: float = 0.0,
        eot: int = 1,
    ) -> None:
        self.loss = loss_named(loss)
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
        left = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for restart in range(self.restarts):
            if len(left) == 0:
                break
            part = model.select(left), images[left], goal.select(left)
            best[left] = self._climb(*part, budget.select(left), draws.select(left), restart)
            if restart + 1 < self.restarts:
                left = left[~reached(part[0], best[left], part[2], passes=self.eot)]
        return best

    def _climb(
        self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws, restart: int
    ) -> Tensor:
        """Run the steps from one start; samples that reached the goal leave the batch."""
        ball, radius = budget.ball, budget.radius(images)
        current = random_start(images, budget, draws, restart) if self.randomised else images.clone()
        gathered = torch.zeros_like(images)
        active = torch.arange(len(images), device=images.device)
        for _ in range(self.steps):
            part = model.select(active), current[active], goal.select(active)
            _, gradient, logits = value_and_gradient(self.loss, *part, passes=self.eot)
            if self.early_stop:
                going = ~reached(*part, passes=self.eot, logits=logits)
                active, gradient = active[going], gradient[going]
            if len(active) == 0:
                break
            gathered[active] = self._gather(gathered[active], gradient)
            moved = current[active] + self.step * radius[active] * ball.ascent(gathered[active])
            current[active] = inside(moved, images[active], ball, radius[active])
        return current

    def _gather(self, gathered: Tensor, gradient: Tensor) -> Tensor:
        """Return g <- decay * g + gradient / |gradient|_1 (Dong et al. 2018, eq. 6), without decay the gradient."""
        if not self.decay:
            return gradient
        return self.decay * gathered + gradient / gradient.abs().sum((1, 2, 3), keepdim=True).clamp_min(1e-38)


def random_start(images: Tensor, budget: Budget, draws: Draws, restart: int) -> Tensor:
    """Return a random point of each image's ball, another one for every restart."""
    offset = budget.ball.random(draws, tuple(images.shape[1:]), stream=restart)
    return (images + budget.radius(images) * offset).clamp(0.0, 1.0)


def _default_step(steps: int, *, random_start: bool) -> float:
    """Return the step size as a share of eps: enough to cross the ball, and from a random start to come back again."""
    return min(1.0, max(2.5 / steps, 0.1) if random_start else 2.0 / steps)


@ATTACKS.register("fgsm")
def fgsm(*, loss: LossName = "ce") -> Attack:
    """Fast gradient (sign) method: one step of size eps (Goodfellow et al. 2015)."""
    return OneStep(loss=loss)


@ATTACKS.register("bim")
def bim(
    *, loss: LossName = "ce", steps: Steps = 10, step: StepShare = None, early_stop: EarlyStop = True, eot: Eot = 1
) -> Attack:
    """Basic iterative method: small steps from the image itself (Kurakin et al. 2017)."""
    return Iterative(loss=loss, steps=steps, step=step, random_start=False, early_stop=early_stop, eot=eot)


@ATTACKS.register("momentum")
def momentum(
    *,
    loss: LossName = "ce",
    steps: Steps = 10,
    step: StepShare = None,
    decay: Decay = 1.0,
    early_stop: EarlyStop = True,
    eot: Eot = 1,
) -> Attack:
    """Momentum iterative method (MI-FGSM): steps along the gradients gathered so far (Dong et al. 2018)."""
    return Iterative(loss=loss, steps=steps, step=step, random_start=False, early_stop=early_stop, decay=decay, eot=eot)


@ATTACKS.register("pgd")
def pgd(
    *,
    loss: LossName = "ce",
    steps: Steps = 20,
    step: StepShare = None,
    restarts: Restarts = 1,
    early_stop: EarlyStop = True,
    eot: Eot = 1,
) -> Attack:
    """Projected gradient descent: small steps from random points of the ball (Madry et al. 2018)."""
    return Iterative(
        loss=loss, steps=steps, step=step, random_start=True, restarts=restarts, early_stop=early_stop, eot=eot
    )


@ATTACKS.register("eot-pgd")
def eot_pgd(
    *,
    loss: LossName = "ce",
    steps: Steps = 20,
    step: StepShare = None,
    restarts: Restarts = 1,
    early_stop: EarlyStop = True,
    eot: Eot = 10,
) -> Attack:
    """PGD on the expectation over a randomised model's passes (Athalye et al. 2018)."""
    return pgd(loss=loss, steps=steps, step=step, restarts=restarts, early_stop=early_stop, eot=eot)
