"""Square attack (Andriushchenko et al. 2020): random search over square windows, using the model's outputs only."""

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
from robustcaps.attacks.losses import log_odds_loss, margin_loss
from robustcaps.attacks.norms import NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

P_HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Fractions of the queries after which p is halved: the paper's schedule of 10, 50, 200, 500, ... of 10,000."""
TILES = 5
"""Tiles per side of the initial L2 perturbation."""


@dataclass(frozen=True, eq=False)
class SquareWindows:
    """One square window per image, at rows `top` and columns `left`, (n,) each."""

    top: Tensor
    left: Tensor
    side: int
    height: int
    width: int

    @classmethod
    def place(cls, uniform: Tensor, side: int, shape: tuple[int, ...]) -> SquareWindows:
        """Place windows by uniform numbers (n, 2), uniformly over the positions inside the image."""
        *_, height, width = shape
        room = torch.tensor([height - side + 1, width - side + 1], device=uniform.device)
        top, left = (uniform * room).long().minimum(room - 1).unbind(1)
        return cls(top, left, side, height, width)

    @property
    def mask(self) -> Tensor:
        """Which pixels lie inside the window, (n, 1, height, width)."""
        inside = [(at >= 0) & (at < self.side) for at in self._coordinates()]
        return (inside[0] & inside[1]).unsqueeze(1)

    def paste(self, pattern: Tensor, transposed: Tensor) -> Tensor:
        """Return a pattern (side, side) pasted into each window, transposed where masked: (n, 1, height, width)."""
        row, column = (at.clamp(0, self.side - 1) for at in self._coordinates())
        pasted = torch.where(transposed[:, None, None], pattern[column, row], pattern[row, column])
        return pasted.unsqueeze(1) * self.mask

    def _coordinates(self) -> tuple[Tensor, Tensor]:
        """Return each pixel's row (n, height, 1) and column (n, 1, width) in its window."""
        row = torch.arange(self.height, device=self.top.device) - self.top[:, None]
        column = torch.arange(self.width, device=self.left.device) - self.left[:, None]
        return row[:, :, None], column[:, None, :]


class SquareSearch(ABC):
    """Initialisation and random updates of perturbations in one norm; radii are (n, 1, 1, 1)."""

    @abstractmethod
    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return the initial perturbation of each image of this shape (channels, height, width)."""

    @abstractmethod
    def update(self, delta: Tensor, radius: Tensor, share: float, draws: Draws, query: int) -> Tensor:
        """Return the perturbations with about this share of their pixels resampled."""


class LinfSquareSearch(SquareSearch):
    """Every pixel is at +eps or -eps; an update sets a window to one of them per channel (algorithm 2)."""

    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return vertical stripes one pixel wide."""
        channels, height, width = shape
        stripes = radius * _signs(draws.uniform((channels, 1, width), stream=0))
        return stripes.expand(-1, -1, height, -1)

    def update(self, delta: Tensor, radius: Tensor, share: float, draws: Draws, query: int) -> Tensor:
        """Set one window to +eps or -eps in each channel."""
        _, channels, height, width = delta.shape
        side = min(max(1, round(math.sqrt(share * height * width))), height, width)
        numbers = draws.uniform((2 + channels,), stream=query)
        window = SquareWindows.place(numbers[:, :2], side, delta.shape)
        return torch.where(window.mask, radius * _signs(numbers[:, 2:, None, None]), delta)


class L2SquareSearch(SquareSearch):
    """An update moves norm from one window to another, as two bumps of opposite sign (algorithm 3)."""

    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return tiles of bumps with random signs, scaled to the radius."""
        channels, height, width = shape
        tiles = min(TILES, height, width)
        side = min(height, width) // tiles
        signs = _signs(draws.uniform((channels, tiles, tiles), stream=0))
        tiled = torch.kron(signs, two_bumps(side).to(radius))
        top, left = (height - tiles * side) // 2, (width - tiles * side) // 2
        delta = radius.new_zeros(len(radius), *shape)
        delta[:, :, top : top + tiles * side, left : left + tiles * side] = tiled
        return radius * delta / _l2_norm(delta, (1, 2, 3))

    def update(self, delta: Tensor, radius: Tensor, share: float, draws: Draws, query: int) -> Tensor:
        """Add bumps to the first window, scaled to the norm of both windows and what the ball leaves unused."""
        _, channels, height, width = delta.shape
        side = min(max(3, round(math.sqrt(share * height * width)) | 1), height, width)
        numbers = draws.uniform((5 + channels,), stream=query)
        first = SquareWindows.place(numbers[:, 0:2], side, delta.shape)
        second = SquareWindows.place(numbers[:, 2:4], side, delta.shape)
        bumps = first.paste(two_bumps(side).to(delta), transposed=numbers[:, 4] < 0.5)
        kept = delta * first.mask
        shape = bumps * _signs(numbers[:, 5:, None, None]) + kept / _l2_norm(kept, (2, 3))
        unused = (radius.square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0.0)
        both = first.mask | second.mask
        available = ((delta * both).square().sum((2, 3), keepdim=True) + unused / channels).sqrt()
        return delta * ~both + shape / _l2_norm(shape, (2, 3)) * available


SEARCHES: dict[NormName, SquareSearch] = {"linf": LinfSquareSearch(), "l2": L2SquareSearch()}


class SquareAttack(Attack):
    """Random search that keeps an update if it increases the objective; one forward pass per query."""

    randomised = True

    def __init__(self, *, queries: int, p_init: float) -> None:
        self.queries = queries
        self.p_init = p_init
        self.passes = float(queries)

    @torch.no_grad()
    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the best images found; samples that reached the goal leave the batch."""
        loss = margin_loss if goal.sign > 0 else log_odds_loss
        search, ball, radii = SEARCHES[budget.norm], budget.ball, budget.radius(images)
        best = images.clone()
        objective = torch.full_like(radii[:, 0, 0, 0], -torch.inf)
        active = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for query in range(self.queries):
            if len(active) == 0:
                break
            clean, radius, active_draws = images[active], radii[active], draws.select(active)
            if query == 0:
                delta = search.start(tuple(images.shape[1:]), radius, active_draws)
            else:
                delta = search.update(best[active] - clean, radius, self._window_share(query), active_draws, query)
            tried = (clean + ball.project(delta, radius)).clamp(0.0, 1.0)
            values, logits = loss(model.select(active), tried, goal.select(active))
            reached = goal.select(active).reached(logits.argmax(1))
            better = (values > objective[active]) | reached
            best[active[better]], objective[active[better]] = tried[better], values[better]
            active = active[~reached]
        return best

    def _window_share(self, query: int) -> float:
        """Return p, the share of pixels that a window covers, which decreases with the number of queries."""
        halvings = sum(query > share * self.queries for share in P_HALVINGS)
        return math.ldexp(self.p_init, -halvings)


def two_bumps(side: int) -> Tensor:
    """Return eta (side, side) of unit norm: a positive and a negative bump side by side (equation 2)."""
    half = side // 2
    eta = torch.cat([_bump(side, half), -_bump(side, side - half)], dim=1)
    return eta / _l2_norm(eta, (0, 1))


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


def _l2_norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the Euclidean norm over some dimensions, which are kept; at least 1e-30."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=dims, keepdim=True)
    return norm.clamp_min(1e-30)


@ATTACKS.register("square")
def square(
    *,
    queries: Annotated[int, Field(ge=1, description="maximum number of queries per sample")] = 1000,
    p_init: Annotated[float, Field(gt=0, le=1, description="share of pixels that the first windows cover")] = 0.8,
) -> Attack:
    """Square attack: score-based black-box random search (Andriushchenko et al. 2020)."""
    return SquareAttack(queries=queries, p_init=p_init)
