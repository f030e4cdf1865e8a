"""The baseline attack: PGD with a record of every step. Its robust accuracy is what the diagnosis questions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.attacks.budgets import Budget, project, random_start
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradients import reaches_goal, value_and_gradient
from robustcaps.diagnostics.checks.context import DiagnosisContext, LossAndGradient, batches


@dataclass(frozen=True, eq=False)
class BaselineRun:
    """The result of the baseline attack, per sample."""

    images: Tensor
    """The first misclassified iterate, or the last iterate if there is none."""
    fooled: Tensor
    """(n,): whether `images` or the last iterate is misclassified when evaluated again."""
    last_fooled: Tensor
    """(n,): whether the last iterate is misclassified."""
    losses: Tensor
    """(steps, n): the attack loss at every step."""


def run_baseline(context: DiagnosisContext) -> BaselineRun:
    """Run the baseline attack on all samples within the budget."""
    return run_pgd(context, context.rows, context.budget, context.baseline.steps)


def baseline_gradient(context: DiagnosisContext) -> LossAndGradient:
    """Return the baseline attack's loss and gradient at the unperturbed images."""
    return context.loss_and_gradient(context.baseline_loss, baseline_model(context), context.images, context.rows)


def baseline_survivors(context: DiagnosisContext) -> Tensor:
    """Return the rows that the baseline attack does not fool."""
    return torch.nonzero(~context.cached(run_baseline).fooled).flatten()


def run_pgd(context: DiagnosisContext, rows: Tensor, budget: Budget, steps: int) -> BaselineRun:
    """Run all steps of the baseline attack on some rows, without early stopping."""
    parts = [_run_pgd_batch(context, batch, budget, steps) for _, batch in batches(rows)]
    first, last, losses = (torch.cat(each, dim) for each, dim in zip(zip(*parts, strict=True), (0, 0, 1), strict=True))
    last_fooled = context.is_fooled(last, rows)
    return BaselineRun(first, context.is_fooled(first, rows) | last_fooled, last_fooled, losses)


def _run_pgd_batch(
    context: DiagnosisContext, rows: Tensor, budget: Budget, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first misclassified iterate (or the last), the last iterate, and the loss at every step."""
    images, goal, model = context.images[rows], context.goal(rows), baseline_model(context).select(rows)
    radius, ball = budget.radius(images), budget.ball
    current = random_start(images, budget, context.draws(rows), restart=0)
    first, not_yet_fooled = current.clone(), torch.ones_like(rows, dtype=torch.bool)
    losses = []
    for _ in range(steps):
        value, gradient, outputs = value_and_gradient(context.baseline_loss, model, current, goal)
        losses.append(value)
        newly_fooled = not_yet_fooled & reaches_goal(model, current, goal, eot=1, logits=outputs)
        first[newly_fooled], not_yet_fooled = current[newly_fooled], not_yet_fooled & ~newly_fooled
        step = context.baseline.step * radius * ball.ascent(gradient.nan_to_num(0.0, 0.0, 0.0))
        current = project(current + step, images, ball, radius)
    first[not_yet_fooled] = current[not_yet_fooled]
    return first, current, torch.stack(losses)


def baseline_model(context: DiagnosisContext) -> CountedModel:
    """Return the model to attack: shielded, or the bare model where scores or the training loss are needed."""
    if context.baseline.loss == "ce":
        return context.counted
    return CountedModel(context.model, Counts.zeros(context.n))
