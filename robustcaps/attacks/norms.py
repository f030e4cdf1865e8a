"""The norms of perturbations: size, projection, steepest ascent and random points of their balls.

| name   | size                          | projection                              | ascent                         |
|--------|-------------------------------|-----------------------------------------|--------------------------------|
| `linf` | largest absolute change       | clipping                                | sign of the gradient           |
| `l2`   | Euclidean norm                | scaling                                 | the normalised gradient        |
| `l1`   | sum of absolute changes       | onto the simplex (Duchi et al. 2008)    | sparse (Tramer & Boneh 2019)   |
| `l0`   | number of changed values      | the largest changes are kept            | the gradient, largest entry 1  |
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from robustcaps.options import NormName
from robustcaps.utils.sample_random import Draws

__all__ = ["L0", "L1", "L2", "NORMS", "TOLERANCE", "Linf", "Norm", "NormName", "add_tolerance"]

TOLERANCE = 1e-6
"""Rounding error allowed outside the box or the ball (relative to radii above 1), and for an unchanged value."""
SPARSITY = 0.01
"""Share of the values that a step of steepest ascent in l1 changes."""


class Norm(ABC):
    """A norm on images; every method works per sample, and radii have the shape (n, 1, 1, 1)."""

    is_sparse: bool = False
    """Whether steps change few values, so that none should be spent on values that cannot leave [0,1]."""

    @abstractmethod
    def size(self, delta: Tensor) -> Tensor:
        """Return the norm of each perturbation, (n,) in float64."""

    @abstractmethod
    def project(self, delta: Tensor, radius: Tensor) -> Tensor:
        """Return the perturbations projected onto the ball."""

    @abstractmethod
    def ascent(self, gradient: Tensor) -> Tensor:
        """Return the unit step of steepest ascent: the dual direction of the gradient."""

    @abstractmethod
    def random(self, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        """Return a uniform random point of the unit ball for each sample."""

    def random_within(self, radius: Tensor, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        """Return a random point of the ball of each sample's radius."""
        return radius * self.random(draws, shape, stream=stream)

    def max_size(self, radius: Tensor, values: int) -> Tensor:  # noqa: ARG002
        """Return radii in float64, enlarged by the rounding error of a perturbation of so many values."""
        return add_tolerance(radius)


class Linf(Norm):
    """The largest absolute change of any pixel."""

    def size(self, delta: Tensor) -> Tensor:
        return delta.abs().flatten(1).amax(1).double()

    def project(self, delta: Tensor, radius: Tensor) -> Tensor:
        return delta.clamp_min(-radius).clamp_max_(radius)  # much faster than `clamp` with radii that broadcast

    def ascent(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def random(self, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        return draws.uniform(shape, stream=stream) * 2.0 - 1.0


class L2(Norm):
    """The Euclidean norm of the change."""

    def size(self, delta: Tensor) -> Tensor:
        return _l2_norm(delta.double()).flatten()

    def project(self, delta: Tensor, radius: Tensor) -> Tensor:
        return delta * (radius / _l2_norm(delta).clamp_min(1e-30)).clamp_max(1.0)

    def ascent(self, gradient: Tensor) -> Tensor:
        # Scaled by the largest entry first: squares of tiny gradients would underflow in float32.
        scaled = gradient / gradient.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-38)
        return scaled / _l2_norm(scaled).clamp_min(1e-30)

    def random(self, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        direction = self.ascent(draws.normal(shape, stream=2 * stream))
        dimensions = direction[0].numel()
        radius = draws.uniform((1, 1, 1), stream=2 * stream + 1) ** (1.0 / dimensions)
        return direction * radius


class L1(Norm):
    """The sum of the absolute changes."""

    is_sparse = True

    def size(self, delta: Tensor) -> Tensor:
        return delta.double().abs().flatten(1).sum(1)

    def project(self, delta: Tensor, radius: Tensor) -> Tensor:
        """Shrink all entries by the threshold theta >= 0 at which the sum is the radius (Duchi et al. 2008, fig. 1)."""
        magnitude, wide = delta.double().abs().flatten(1), radius.double().flatten(1)
        descending = magnitude.sort(1, descending=True).values
        ranks = torch.arange(1, magnitude.shape[1] + 1, device=delta.device)
        thetas = (descending.cumsum(1) - wide) / ranks
        last = (descending > thetas).sum(1, keepdim=True).clamp_min(1) - 1
        shrunk = (magnitude - thetas.gather(1, last)).clamp_min(0.0).reshape(delta.shape).to(delta.dtype)
        inside = (magnitude.sum(1) <= wide[:, 0])[:, None, None, None]
        return torch.where(inside, delta, shrunk * delta.sign())

    def ascent(self, gradient: Tensor) -> Tensor:
        """Share the step among the entries of the largest gradients, as a single one would soon saturate."""
        kept = (
            _largest(gradient, torch.full((len(gradient), 1), SPARSITY * gradient[0].numel()).ceil()) * gradient.sign()
        )
        return kept / kept.abs().sum((1, 2, 3), keepdim=True).clamp_min(1.0)

    def random(self, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        """Return signed exponential numbers, divided by their sum and one more (Barthe et al. 2005)."""
        values = torch.Size(shape).numel()
        exponential = -torch.log1p(-draws.uniform((values + 1,), stream=2 * stream))
        sign = torch.where(draws.uniform((values,), stream=2 * stream + 1) < 0.5, -1.0, 1.0)
        share = exponential[:, :-1] / exponential.sum(1, keepdim=True)
        return (share * sign).reshape(-1, *shape)

    def max_size(self, radius: Tensor, values: int) -> Tensor:
        return add_tolerance(radius) + 2.0**-24 * values  # each value of a float32 image is rounded


class L0(Norm):
    """The number of changed values; a pixel has one per channel."""

    is_sparse = True

    def size(self, delta: Tensor) -> Tensor:
        return (delta.abs() > TOLERANCE).flatten(1).sum(1).double()

    def project(self, delta: Tensor, radius: Tensor) -> Tensor:
        return delta * _largest(delta, torch.floor(radius + TOLERANCE).flatten(1))

    def ascent(self, gradient: Tensor) -> Tensor:
        """Return the direction of the gradient: the ball does not bound how far a value changes (Croce & Hein 2019)."""
        return gradient / gradient.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-38)

    def random(self, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        return self.random_within(torch.ones(len(draws.indices), 1, 1, 1), draws, shape, stream=stream)

    def random_within(self, radius: Tensor, draws: Draws, shape: tuple[int, ...], *, stream: int) -> Tensor:
        order = draws.uniform(shape, stream=2 * stream)
        change = 2.0 * draws.uniform(shape, stream=2 * stream + 1) - 1.0
        return change * _largest(order, torch.floor(radius + TOLERANCE).flatten(1))


def add_tolerance(radius: Tensor) -> Tensor:
    """Return radii in float64, enlarged by the rounding error that is allowed."""
    wide = radius.double()
    return wide + TOLERANCE * wide.clamp_min(1.0)


def _largest(values: Tensor, count: Tensor) -> Tensor:
    """Return a mask of the entries with the largest absolute values, `count` (n, 1) of each sample."""
    order = values.abs().flatten(1).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    return (rank < count.to(rank.device)).reshape(values.shape)


def _l2_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each sample, (n, 1, 1, 1)."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True)
    return norm


NORMS: dict[NormName, Norm] = {"linf": Linf(), "l2": L2(), "l1": L1(), "l0": L0()}
