"""Square attack (Andriushchenko et al. 2020): random search on the model's scores alone, one window at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import cross_entropy_on_logits, logit_margin
from robustcaps.attacks.norms import NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""The shares of the queries after which p is halved: as the authors do after 10, 50, 200, 500, ... of 10,000."""
TILES = 5
"""The L2 search starts from 5x5 tiles."""


@dataclass(frozen=True, eq=False)
class Windows:
    """One square window in each image (n, ..., height, width), at rows `top` and columns `left`, (n,) each."""

    top: Tensor
    left: Tensor
    side: int
    height: int
    width: int

    @classmethod
    def place(cls, where: Tensor, side: int, shape: tuple[int, ...]) -> Windows:
        """Place windows by uniform numbers (n, 2): every position inside the image is as likely."""
        *_, height, width = shape
        room = torch.tensor([height - side + 1, width - side + 1], device=where.device)
        top, left = (where * room).long().minimum(room - 1).unbind(1)
        return cls(top, left, side, height, width)

    @property
    def mask(self) -> Tensor:
        """(n, 1, height, width): which pixels lie inside."""
        inside = [(at >= 0) & (at < self.side) for at in self._coordinates()]
        return (inside[0] & inside[1]).unsqueeze(1)

    def paste(self, pattern: Tensor, turned: Tensor) -> Tensor:
        """Return a pattern (side, side), transposed where `turned` (n,), in each window; 0 outside: (n, 1, h, w)."""
        row, column = (at.clamp(0, self.side - 1) for at in self._coordinates())
        pasted = torch.where(turned[:, None, None], pattern[column, row], pattern[row, column])
        return pasted.unsqueeze(1) * self.mask

    def _coordinates(self) -> tuple[Tensor, Tensor]:
        """Return each pixel's row (n, height, 1) and column (n, 1, width) in its window."""
        row = torch.arange(self.height, device=self.top.device) - self.top[:, None]
        column = torch.arange(self.width, device=self.left.device) - self.left[:, None]
        return row[:, :, None], column[:, None, :]


class Search(ABC):
    """How perturbations start and move in one norm; radii are (n, 1, 1, 1)."""

    @abstractmethod
    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return the first perturbation of each image of this shape (channels, height, width)."""

    @abstractmethod
    def move(self, delta: Tensor, radius: Tensor, share: float, draws: Draws, query: int) -> Tensor:
        """Return the perturbations with about this share of their pixels changed."""


class LinfSearch(Search):
    """Every pixel stands at an end of its interval; a window goes to one end, channel by channel (algorithm 2)."""

    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return vertical stripes one pixel wide."""
        channels, height, width = shape
        stripes = radius * _signs(draws.uniform((channels, 1, width), stream=0))
        return stripes.expand(-1, -1, height, -1)

    def move(self, delta: Tensor, radius: Tensor, share: float, draws: Draws, query: int) -> Tensor:
        """Set one window to +eps or -eps in each channel."""
        _, channels, height, width = delta.shape
        side = min(max(1, round(math.sqrt(share * height * width))), height, width)
        numbers = draws.uniform((2 + channels,), stream=query)
        window = Windows.place(numbers[:, :2], side, delta.shape)
        return torch.where(window.mask, radius * _signs(numbers[:, 2:, None, None]), delta)


class L2Search(Search):
    """The budget of one window is moved to another, in the shape of two bumps of opposite sign (algorithm 3)."""

    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return tiles of bumps with random signs, together as long as the radius."""
        channels, height, width = shape
        tiles = min(TILES, height, width)
        side = min(height, width) // tiles
        signs = _signs(draws.uniform((channels, tiles, tiles), stream=0))
        tiled = torch.kron(signs, two_bumps(side).to(radius))
        top, left = (height - tiles * side) // 2, (width - tiles * side) // 2
        delta = radius.new_zeros(len(radius), *shape)
        delta[:, :, top : top + tiles * side, left : left + tiles * side] = tiled
        return radius * delta / _length(delta, (1, 2, 3))

    def move(self, delta: Tensor, radius: Tensor, share: float, draws: Draws, query: int) -> Tensor:
        """Give the first window bumps beside what it has, and all that the second one and the ball still hold."""
        _, channels, height, width = delta.shape
        side = min(max(3, round(math.sqrt(share * height * width)) | 1), height, width)
        numbers = draws.uniform((5 + channels,), stream=query)
        first = Windows.place(numbers[:, 0:2], side, delta.shape)
        second = Windows.place(numbers[:, 2:4], side, delta.shape)
        bumps = first.paste(two_bumps(side).to(delta), turned=numbers[:, 4] < 0.5)
        kept = delta * first.mask
        shape = bumps * _signs(numbers[:, 5:, None, None]) + kept / _length(kept, (2, 3))
        unused = (radius.square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0.0)
        both = first.mask | second.mask
        available = ((delta * both).square().sum((2, 3), keepdim=True) + unused / channels).sqrt()
        return delta * ~both + shape / _length(shape, (2, 3)) * available


SEARCHES: dict[NormName, Search] = {"linf": LinfSearch(), "l2": L2Search()}


class Square(Attack):
    """Random search: a changed window is kept where it raises the objective; one forward pass per query."""

    randomised = True

    def __init__(self, *, queries: int, p_init: float) -> None:
        self.queries = queries
        self.p_init = p_init
        self.passes = float(queries)

    @torch.no_grad()
    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the best images found; samples that reached the goal leave the batch."""
        loss = logit_margin if goal.sign > 0 else cross_entropy_on_logits
        search, ball, radii = SEARCHES[budget.norm], budget.ball, budget.radius(images)
        best = images.clone()
        objective = torch.full_like(radii[:, 0, 0, 0], -torch.inf)
        active = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for query in range(self.queries):
            if len(active) == 0:
                break
            at, radius, source = images[active], radii[active], draws.select(active)
            if query == 0:
                delta = search.start(tuple(images.shape[1:]), radius, source)
            else:
                delta = search.move(best[active] - at, radius, self._share(query), source, query)
            tried = (at + ball.project(delta, radius)).clamp(0.0, 1.0)
            values, logits = loss(model.select(active), tried, goal.select(active))
            reached = goal.select(active).reached(logits.argmax(1))
            better = (values > objective[active]) | reached
            best[active[better]], objective[active[better]] = tried[better], values[better]
            active = active[~reached]
        return best

    def _share(self, query: int) -> float:
        """Return p, the share of the pixels that a window covers: it falls as the search goes on."""
        halvings = sum(query > share * self.queries for share in HALVINGS)
        return math.ldexp(self.p_init, -halvings)


def two_bumps(side: int) -> Tensor:
    """Return eta (side, side) of length 1: two halves, a bump up and a bump down (equation 2 of the paper)."""
    half = side // 2
    eta = torch.cat([_bump(side, half), -_bump(side, side - half)], dim=1)
    return eta / _length(eta, (0, 1))


def _bump(height: int, width: int) -> Tensor:
    """Return sum_{k=0}^{M} 1/(n+1-k)^2 with n = height // 2 and M = n less the largest offset from the centre."""
    n = height // 2
    row = (torch.arange(height) - height // 2).abs()
    column = (torch.arange(width) - width // 2).abs()
    rings = torch.cumsum(1.0 / torch.arange(n + 1, 0, -1).square(), dim=0)
    return rings[n - torch.maximum(row[:, None], column[None, :])]


def _signs(uniform: Tensor) -> Tensor:
    """Return -1 or +1 for numbers in [0,1)."""
    return torch.where(uniform < 0.5, -1.0, 1.0)


def _length(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the Euclidean length over these dimensions, kept, and never 0."""
    length: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    return length.clamp_min(1e-30)


@ATTACKS.register("square")
def square(
    *,
    queries: Annotated[int, Field(ge=1, description="forward passes per sample at most")] = 1000,
    p_init: Annotated[float, Field(gt=0, le=1, description="share of the pixels that the first windows cover")] = 0.8,
) -> Attack:
    """Square attack: random search that sees only the model's scores (Andriushchenko et al. 2020)."""
    return Square(queries=queries, p_init=p_init)
