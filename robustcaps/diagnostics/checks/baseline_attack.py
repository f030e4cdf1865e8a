"""The textbook attack, run to its end and watched on the way: what it fools is the number in question."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient import inside, random_start, reached, value_and_gradient
from robustcaps.diagnostics.checks.context import Ascent, Case, batches


@dataclass(frozen=True, eq=False)
class Trace:
    """What became of each attacked sample."""

    images: Tensor
    """The first iterate that the model answered wrong, else the last one."""
    fooled: Tensor
    """(n,): whether one of the two is answered wrong when asked again."""
    last_fooled: Tensor
    """(n,): whether the last iterate is."""
    heights: Tensor
    """(steps, n): the loss, step by step."""


def textbook_attack(case: Case) -> Trace:
    """Return the trace of the textbook attack on all samples, within the budget."""
    return climb(case, case.rows, case.budget, case.textbook.steps)


def textbook_start(case: Case) -> Ascent:
    """Return the loss and the gradient that the textbook attack sees at the images themselves."""
    return case.climbing(case.objective, textbook_model(case), case.images, case.rows)


def left(case: Case) -> Tensor:
    """Return the samples that the textbook attack does not fool."""
    return torch.nonzero(~case.once(textbook_attack).fooled).flatten()


def climb(case: Case, rows: Tensor, budget: Budget, steps: int) -> Trace:
    """Run the textbook attack on some samples to its end."""
    parts = [_climb(case, part, budget, steps) for _, part in batches(rows)]
    first, last, heights = (torch.cat(each, dim) for each, dim in zip(zip(*parts, strict=True), (0, 0, 1), strict=True))
    last_fooled = case.fooled(last, rows)
    return Trace(first, case.fooled(first, rows) | last_fooled, last_fooled, heights)


def _climb(case: Case, rows: Tensor, budget: Budget, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first iterate that fooled (else the last), the last, and the loss at every step."""
    images, goal, model = case.images[rows], case.goal(rows), textbook_model(case).select(rows)
    radius, ball = budget.radius(images), budget.ball
    current = random_start(images, budget, case.draws(rows), restart=0)
    first, never = current.clone(), torch.ones_like(rows, dtype=torch.bool)
    heights = []
    for _ in range(steps):
        value, gradient, outputs = value_and_gradient(case.objective, model, current, goal)
        heights.append(value)
        new = never & reached(model, current, goal, passes=1, logits=outputs)
        first[new], never = current[new], never & ~new
        step = case.textbook.step * radius * ball.ascent(gradient.nan_to_num(0.0, 0.0, 0.0))
        current = inside(current + step, images, ball, radius)
    first[never] = current[never]
    return first, current, torch.stack(heights)


def textbook_model(case: Case) -> CountedModel:
    """Return what the textbook attack asks: the shielded model, or for its scores or training loss the bare one."""
    if case.textbook.loss == "ce":
        return case.counted
    return CountedModel(case.model, Counts.zeros(case.n))
