"""A query budget: so many forward passes of the attacked model per sample and eps, and what then counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.goals import Goal


class QueriesSpent(Exception):  # noqa: N818  no error: the attack is over
    """No sample has a query left."""


class Ration:
    """Counts the queries of every sample and remembers its best one.

    A sample that asks for more than `limit` gets what it had found by then: its first query inside the ball that
    reached the goal, else its last one inside. So its row does not depend on the samples that it shares a batch with.
    """

    def __init__(self, limit: int, rows: Tensor, images: Tensor, goal: Goal) -> None:
        self.limit = limit
        self.images = images
        self.goal = goal
        self.place = torch.full((int(rows.max()) + 1 if len(rows) else 0,), -1)
        self.place[rows] = torch.arange(len(rows))
        self.open = torch.zeros(0, dtype=torch.bool)

    def run(self, budget: Budget, sweep: Callable[[], Iterable[Any]]) -> Any:
        """Return the proposal of a sweep over this one budget, with the queries it may have: none is shared by others.

        Until nobody has a query left, those without go on unheard: who shares their batch notices nothing.
        """
        self._start(budget)
        try:
            return self._settled(next(iter(sweep()), None))
        except QueriesSpent:
            return self.best

    def _start(self, budget: Budget) -> None:
        n = len(self.images)
        self.ball, self.reach = budget.ball, budget.reach(self.images)
        self.spent = torch.zeros(n, dtype=torch.long)
        self.refused = torch.zeros(n, dtype=torch.bool, device=self.images.device)
        self.reached = torch.zeros(n, dtype=torch.bool, device=self.images.device)
        self.best = self.images.clone()

    def take(self, rows: Tensor) -> Tensor:
        """Take a query from each of these samples and return which of them still had one (float64, for counting)."""
        places = self.place[rows]
        copies_before = (places[:, None] == places[None, :]).tril(-1).sum(1)
        self.open = self.spent[places] + copies_before < self.limit
        self.refused[places[~self.open]] = True
        if len(self.refused) and bool(self.refused.all()):
            raise QueriesSpent
        self.spent.index_add_(0, places, self.open.long())
        return self.open.double()

    def note(self, rows: Tensor, asked: Tensor, logits: Tensor) -> None:
        """Remember the images of the query that was just taken, where they are inside the ball."""
        places = self.place[rows].to(asked.device)
        inside = self.ball.size(asked - self.images[places]) <= self.reach[places]
        useful = self.open.to(asked.device) & inside & ~self.reached[places]
        hit = useful & self.goal.select(places).reached(logits.argmax(1))
        for chosen in (useful, hit):  # the hits last: of several copies of a sample, one that hits is to stay
            self.best[places[chosen]] = asked[chosen]
        self.reached[places[hit]] = True

    def _settled(self, proposed: Any) -> Any:
        """Return the proposals, with the best query in place of those of samples that asked for too much."""
        fits = isinstance(proposed, Tensor) and proposed.shape == self.best.shape and proposed.dtype == self.best.dtype
        if not fits or not bool(self.refused.any()):
            return proposed
        return torch.where(self.refused[:, None, None, None], self.best, proposed.detach())
