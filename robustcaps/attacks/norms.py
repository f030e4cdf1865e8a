"""The linf and l2 norms of perturbations: size, projection, steepest ascent and random points of their balls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from robustcaps.utils.sample_random import Draws

NormName = Literal["linf", "l2"]


class Norm(ABC):
    """A norm on images; every method works per sample, and radii have the shape (n, 1, 1, 1)."""

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


class Linf(Norm):
    """The largest absolute change of any pixel."""

    def size(self, delta: Tensor) -> Tensor:
        return delta.double().abs().flatten(1).amax(1)

    def project(self, delta: Tensor, radius: Tensor) -> Tensor:
        return torch.clamp(delta, -radius, radius)

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


def _l2_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each sample, (n, 1, 1, 1)."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True)
    return norm


NORMS: dict[NormName, Norm] = {"linf": Linf(), "l2": L2()}
