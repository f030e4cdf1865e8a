"""Square attack (Andriushchenko et al. 2020): random search over square windows, using the model's outputs only."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import log_odds_loss, margin_loss
from robustcaps.attacks.norms import NORMS, NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

P_HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Fractions of the queries after which p is halved: the paper's schedule of 10, 50, 200, 500, ... of 10,000."""
TILES = 5
"""Tiles per side of the initial L2 perturbation."""
MAX_CHUNK = 32
"""Queries whose random numbers are drawn together."""
MAX_CHUNK_NUMBERS = 2**22
"""Largest masks of windows that are held in memory."""
Selectable = TypeVar("Selectable", Tensor, CountedModel, Goal, Draws)


@dataclass(frozen=True, eq=False)
class SquareWindows:
    """One square window per image, at rows `top` and columns `left`, (..., n) each."""

    top: Tensor
    left: Tensor
    side: int
    height: int
    width: int

    @classmethod
    def place(cls, uniform: Tensor, side: int, shape: tuple[int, ...]) -> SquareWindows:
        """Place windows by uniform numbers (..., n, 2), uniformly over the positions inside the image."""
        *_, height, width = shape
        room = torch.tensor([height - side + 1, width - side + 1], device=uniform.device)
        top, left = (uniform * room).long().minimum(room - 1).unbind(-1)
        return cls(top, left, side, height, width)

    @property
    def mask(self) -> Tensor:
        """Which pixels lie inside the window, (..., n, 1, height, width)."""
        inside_rows, inside_columns = self.edges
        return inside_rows & inside_columns

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """Which rows (..., n, 1, height, 1) and which columns (..., n, 1, 1, width) the window covers."""
        row, column = (((at >= 0) & (at < self.side)).unsqueeze(-3) for at in self._coordinates())
        return row, column

    def paste(self, pattern: Tensor, transposed: Tensor) -> Tensor:
        """Paste a pattern (side, side) into each window, transposed where masked: (..., n, 1, height, width)."""
        row, column = (at.clamp(0, self.side - 1) for at in self._coordinates())
        pasted = torch.where(transposed[..., None, None], pattern[column, row], pattern[row, column])
        return pasted.unsqueeze(-3) * self.mask

    def _coordinates(self) -> tuple[Tensor, Tensor]:
        """Return each pixel's row (..., n, height, 1) and column (..., n, 1, width) in its window."""
        row = torch.arange(self.height, device=self.top.device) - self.top[..., None]
        column = torch.arange(self.width, device=self.left.device) - self.left[..., None]
        return row[..., :, None], column[..., None, :]


Proposals = tuple[Tensor, ...]
"""What is random about the updates of several queries; all tensors are (queries, n, ...)."""


class SquareSearch(ABC):
    """Initialisation and random updates of perturbations in one norm; radii are (n, 1, 1, 1)."""

    @abstractmethod
    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return the initial perturbation of each image of this shape (channels, height, width)."""

    @abstractmethod
    def propose(self, shape: tuple[int, ...], share: float, draws: Draws, queries: Sequence[int]) -> Proposals:
        """Draw the updates of several queries, whose windows cover about this share of an image's pixels."""

    @abstractmethod
    def update(self, delta: Tensor, radius: Tensor, proposal: Proposals) -> Tensor:
        """Return perturbations updated by the proposal of one query, inside the ball."""

    def perturbation(self, best: Tensor, images: Tensor, radius: Tensor) -> Tensor:  # noqa: ARG002
        """Return the perturbations that updates start from."""
        return best - images


class LinfSquareSearch(SquareSearch):
    """Every pixel is at +eps or -eps; an update sets a window to one of them per channel (algorithm 2)."""

    def start(self, shape: tuple[int, ...], radius: Tensor, draws: Draws) -> Tensor:
        """Return vertical stripes one pixel wide."""
        channels, height, width = shape
        stripes = radius * _signs(draws.uniform((channels, 1, width), stream=0))
        return stripes.expand(-1, -1, height, -1)

    def propose(self, shape: tuple[int, ...], share: float, draws: Draws, queries: Sequence[int]) -> Proposals:
        """Draw a window, and a sign per channel."""
        channels, height, width = shape
        side = min(max(1, round(math.sqrt(share * height * width))), height, width)
        numbers = draws.uniform_streams((2 + channels,), queries)
        window = SquareWindows.place(numbers[..., :2], side, shape)
        rows, columns = window.edges
        return rows.to(numbers.dtype), columns.to(numbers.dtype), _signs(numbers[..., 2:, None, None])

    def update(self, delta: Tensor, radius: Tensor, proposal: Proposals) -> Tensor:
        """Set the window to +eps or -eps in each channel."""
        rows, columns, signs = proposal
        return torch.lerp(delta, radius * signs, rows * columns)  # exact at 0 and 1, and much faster than `where`

    def perturbation(self, best: Tensor, images: Tensor, radius: Tensor) -> Tensor:
        """Return the perturbations, projected: no update leaves the ball then."""
        return NORMS["linf"].project(best - images, radius)


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

    def propose(self, shape: tuple[int, ...], share: float, draws: Draws, queries: Sequence[int]) -> Proposals:
        """Draw the masks of two windows, and bumps for the first one with a sign per channel."""
        channels, height, width = shape
        side = min(max(3, round(math.sqrt(share * height * width)) | 1), height, width)
        numbers = draws.uniform_streams((5 + channels,), queries)
        first, second = (SquareWindows.place(numbers[..., at : at + 2], side, shape) for at in (0, 2))
        bumps = first.paste(two_bumps(side).to(numbers), transposed=numbers[..., 4] < 0.5)
        return first.mask, second.mask, bumps, _signs(numbers[..., 5:, None, None])

    def update(self, delta: Tensor, radius: Tensor, proposal: Proposals) -> Tensor:
        """Add the bumps to the first window, scaled to the norm of both windows and what the ball leaves unused."""
        first, second, bumps, signs = proposal
        kept = delta * first
        shape = bumps * signs + kept / _l2_norm(kept, (2, 3))
        unused = (radius.square() - delta.square().sum((1, 2, 3), keepdim=True)).clamp_min(0.0)
        both = first | second
        available = ((delta * both).square().sum((2, 3), keepdim=True) + unused / delta.shape[1]).sqrt()
        return NORMS["l2"].project(delta * ~both + shape / _l2_norm(shape, (2, 3)) * available, radius)


SEARCHES: dict[NormName, SquareSearch] = {"linf": LinfSquareSearch(), "l2": L2SquareSearch()}


@dataclass(eq=False)
class _SearchState:
    """The samples that have not reached the goal, each with the best image so far."""

    rows: Tensor
    model: CountedModel
    images: Tensor
    goal: Goal
    radius: Tensor
    draws: Draws
    best: Tensor
    delta: Tensor
    """The perturbation that updates start from."""
    objective: Tensor

    @classmethod
    def start(cls, model: CountedModel, images: Tensor, goal: Goal, radius: Tensor, draws: Draws) -> _SearchState:
        """Return the state before the first query."""
        rows = torch.arange(len(images), device=images.device)
        objective = torch.full_like(radius[:, 0, 0, 0], -torch.inf)
        best, delta = images.clone(), torch.zeros_like(images)
        return cls(rows, model.select(rows), images, goal, radius, draws, best, delta, objective)

    def keep_better(self, tried: Tensor, values: Tensor, search: SquareSearch) -> None:
        """Replace the best images by the tried ones where these have a higher objective."""
        better = torch.nonzero(values > self.objective).flatten()
        if len(better):
            improved, images, radius = (part.index_select(0, better) for part in (tried, self.images, self.radius))
            self.best.index_copy_(0, better, improved)
            self.objective.index_copy_(0, better, values.index_select(0, better))
            self.delta.index_copy_(0, better, search.perturbation(improved, images, radius))

    def select(self, kept: Tensor) -> _SearchState:
        """Return the state of a subset of the samples."""
        rows = torch.nonzero(kept).flatten()
        return _SearchState(*(_select(getattr(self, each.name), rows) for each in fields(self)))


def _select(part: Selectable, rows: Tensor) -> Selectable:
    return part[rows] if isinstance(part, Tensor) else part.select(rows)


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
        search, shape, found = SEARCHES[budget.norm], tuple(images.shape[1:]), images.clone()
        state = _SearchState.start(model, images, goal, budget.radius(images), draws)
        for queries in self._chunks(images.numel() if budget.eps else 0):
            proposals = search.propose(shape, self._window_share(queries[0]), state.draws, queries)
            for position, query in enumerate(queries):
                if len(state.rows) == 0:
                    return found
                if query == 0:
                    delta = budget.ball.project(search.start(shape, state.radius, draws), state.radius)
                else:
                    delta = search.update(state.delta, state.radius, tuple(part[position] for part in proposals))
                tried = (state.images + delta).clamp_(0.0, 1.0)
                values, logits = loss(state.model, tried, state.goal)
                state.keep_better(tried, values, search)
                reached = state.goal.reached(logits.argmax(1))
                if bool(reached.any()):
                    found[state.rows[reached]] = tried[reached]
                    state, proposals = state.select(~reached), tuple(part[:, ~reached] for part in proposals)
        found[state.rows] = state.best
        return found

    def _chunks(self, numbers: int) -> Iterator[range]:
        """Yield successive queries whose windows cover the same share, few at first, for images of so many numbers."""
        start = 0
        while start < self.queries and numbers:
            most = min(max(start, 1), MAX_CHUNK, max(MAX_CHUNK_NUMBERS // numbers, 1))
            share, stop = self._window_share(start), start + 1
            while stop < min(start + most, self.queries) and self._window_share(stop) == share:
                stop += 1
            yield range(start, stop)
            start = stop

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
