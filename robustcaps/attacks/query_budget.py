"""Query budgets: a maximum number of forward passes of the attacked model per sample and eps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.goals import Goal


class QueryBudgetExhausted(Exception):  # noqa: N818  control flow, not an error: the attack is over
    """Raised by a query when no sample has queries left."""


class QueryBudget:
    """Counts the queries of each sample and keeps the best image it was queried with.

    A sample that exceeds `max_queries` gets its first queried image inside the ball that reached the goal, else the
    last one inside the ball. Its row therefore does not depend on the other samples of the batch.
    """

    def __init__(self, max_queries: int, rows: Tensor, images: Tensor, goal: Goal) -> None:
        self.max_queries = max_queries
        self.images = images
        self.goal = goal
        self.positions = torch.full((int(rows.max()) + 1 if len(rows) else 0,), -1)
        """Position in the batch of each row."""
        self.positions[rows] = torch.arange(len(rows))
        self.is_allowed = torch.zeros(0, dtype=torch.bool)
        """Which images of the current query are within the budget."""

    def run(self, budget: Budget, run_attack: Callable[[], Iterable[Any]]) -> Any:
        """Run an attack with a fresh budget and return its images; those of samples that exceeded it are replaced.

        The attack goes on until all samples have exceeded the budget, because stopping for some would change the
        results of the others in their batch.
        """
        self._start(budget)
        try:
            return self._replace_exceeded(next(iter(run_attack()), None))
        except QueryBudgetExhausted:
            return self.best

    def _start(self, budget: Budget) -> None:
        n = len(self.images)
        self.ball, self.max_size = budget.ball, budget.max_size(self.images)
        self.used = torch.zeros(n, dtype=torch.long)
        self.exceeded = torch.zeros(n, dtype=torch.bool, device=self.images.device)
        self.succeeded = torch.zeros(n, dtype=torch.bool, device=self.images.device)
        self.best = self.images.clone()

    def spend(self, rows: Tensor) -> Tensor:
        """Charge one query per row and return which were within the budget (float64, to be added to the counts)."""
        positions = self.positions[rows]
        earlier_copies = (positions[:, None] == positions[None, :]).tril(-1).sum(1)
        self.is_allowed = self.used[positions] + earlier_copies < self.max_queries
        self.exceeded[positions[~self.is_allowed]] = True
        if len(self.exceeded) and bool(self.exceeded.all()):
            raise QueryBudgetExhausted
        self.used.index_add_(0, positions, self.is_allowed.long())
        return self.is_allowed.double()

    def record(self, rows: Tensor, queried: Tensor, logits: Tensor) -> None:
        """Keep the images of the query charged last that are within the budget and inside the ball."""
        positions = self.positions[rows].to(queried.device)
        inside = self.ball.size(queried - self.images[positions]) <= self.max_size[positions]
        usable = self.is_allowed.to(queried.device) & inside & ~self.succeeded[positions]
        successful = usable & self.goal.select(positions).reached(logits.argmax(1))
        for mask in (usable, successful):  # successes last, so that they win over other copies of the same sample
            self.best[positions[mask]] = queried[mask]
        self.succeeded[positions[successful]] = True

    def _replace_exceeded(self, images: Any) -> Any:
        """Return the images of an attack, with the best queried image for samples that exceeded the budget."""
        is_valid = isinstance(images, Tensor) and images.shape == self.best.shape and images.dtype == self.best.dtype
        if not is_valid or not bool(self.exceeded.any()):
            return images
        return torch.where(self.exceeded[:, None, None, None], self.best, images.detach())
