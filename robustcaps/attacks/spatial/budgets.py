"""Budgets of transformations: ranges of parameters, and the image that parameters give."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NoReturn, Self

import torch
from torch import Tensor

from robustcaps.attacks.budgets import Budget

SLACK = 1e-9
"""Rounding error allowed outside the range of a parameter."""
MAX_DIFFERENCE = 1e-5
"""Rounding error allowed between an image and the one that its parameters give."""


@dataclass(frozen=True, eq=False)
class TransformedImages:
    """What an attack on a set of transformations returns: images, and the parameters that they are made with."""

    images: Tensor
    """(n, channels, height, width)"""
    parameters: Tensor
    """(n, parameters), float64; 0 changes nothing."""


def images_of(proposal: Tensor | TransformedImages) -> Tensor:
    """Return the images that an attack proposes, with or without parameters."""
    return proposal.images if isinstance(proposal, TransformedImages) else proposal


@dataclass(frozen=True)
class TransformationBudget(Budget, ABC):
    """A set of transformations of each image: every parameter has a range that grows with eps and contains 0."""

    @property
    @abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters, as the columns of the rows are called."""

    @abstractmethod
    def limits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value of each parameter of each image, (n, parameters) in float64."""

    @abstractmethod
    def move(self, images: Tensor, parameters: Tensor, *, anew: bool) -> Tensor:
        """Return the transformed images; `anew` forbids to take any from a cache."""

    @abstractmethod
    def grid(self, levels: int) -> Tensor:
        """Return points (m, parameters) of the cube from -1 to 1 that cover the ranges, with so many main levels."""

    def transform(self, images: Tensor, parameters: Tensor, *, anew: bool = False) -> Tensor:
        """Return the transformed images; those with all parameters 0 are the images themselves."""
        is_moved = (parameters != 0).any(1)[:, None, None, None]
        return torch.where(is_moved, self.move(images, parameters, anew=anew), images)

    def select(self, rows: Tensor) -> Self:  # noqa: ARG002
        """Return the budget for a subset of the samples."""
        return self

    def contains(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Return which samples have all parameters inside their ranges, (n,)."""
        low, high = self.limits(images)
        return ((parameters >= low - SLACK) & (parameters <= high + SLACK)).all(1)

    def at(self, images: Tensor, points: Tensor) -> Tensor:
        """Return the parameters at points of the cube from -1 to 1: 0 stays 0, -1 and 1 are the limits."""
        low, high = self.limits(images)
        return torch.where(points < 0, -points * low, points * high)

    def points_of(self, images: Tensor, parameters: Tensor) -> Tensor:
        """Return the points of the cube that have these parameters; the inverse of `at`."""
        low, high = self.limits(images)
        extent = torch.where(parameters < 0, -low, high)
        return torch.where(extent > 0, parameters / extent.clamp_min(SLACK), 0.0).clamp(-1.0, 1.0)

    def size(self, parameters: Tensor) -> Tensor:
        """Return the smallest eps that allows each sample's parameters, (n,) in float64."""
        needed = parameters / self.full_range().to(parameters.device)
        return torch.where(parameters == 0, 0.0, needed).abs().amax(1)  # 0 / 0 where a parameter has no range

    @abstractmethod
    def full_range(self) -> Tensor:
        """Return how far each parameter may change per unit of eps, (parameters,) in float64."""

    def untrusted_copy(self) -> Self:
        """Return a copy for an attack to hold, so that nothing it does to it reaches the checks."""
        return copy.deepcopy(self)

    @property
    def ball(self) -> NoReturn:
        """Raise: these sets are not balls."""
        raise TypeError(f"{self.norm}: a set of transformations is not a ball around the image.")

    @property
    def shared_eps(self) -> None:
        """None: eps is no radius in pixels."""
        return None
