"""Perturbation budgets: an eps, a norm, and the unit that eps is measured in."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from robustcaps.attacks.norms import NORMS, Norm, NormName
from robustcaps.errors import UserError, did_you_mean
from robustcaps.utils.sample_random import Draws

Unit = Literal["pixel", "std"]

MAX_EPS = 1e6
"""Larger values would overflow in float32."""
TOLERANCE = 1e-6
"""Rounding error allowed outside the box or the ball (relative to radii above 1)."""


@dataclass(frozen=True)
class Budget:
    """A ball around each image: eps in units of the pixel range [0,1], or in standard deviations of the image."""

    eps: float
    norm: NormName = "linf"
    unit: Unit = "pixel"

    def __post_init__(self) -> None:
        if isinstance(self.eps, bool) or not isinstance(self.eps, (int, float)) or not abs(self.eps) < math.inf:
            raise UserError(f"eps: must be a finite number, not {self.eps!r}.")
        if self.eps > MAX_EPS:
            raise UserError(f"eps: must not be above {MAX_EPS:g}, but is {self.eps}.")
        if self.eps < 0:
            raise UserError(f"eps: must not be negative, but is {self.eps}.")
        if self.norm not in NORMS:
            raise UserError(f"norm: unknown norm '{self.norm}'. {did_you_mean(str(self.norm), NORMS)}")
        if self.unit not in ("pixel", "std"):
            raise UserError(f"unit: unknown unit '{self.unit}'. {did_you_mean(str(self.unit), ('pixel', 'std'))}")

    @property
    def ball(self) -> Norm:
        """The geometry of the norm."""
        return NORMS[self.norm]

    def radius(self, images: Tensor) -> Tensor:
        """Return the radius of each image's ball in pixels, (n, 1, 1, 1)."""
        if self.unit == "pixel":
            return torch.full((len(images), 1, 1, 1), self.eps, dtype=images.dtype, device=images.device)
        return self.eps * images.std((1, 2, 3), keepdim=True, correction=0)

    def max_size(self, images: Tensor) -> Tensor:
        """Return the largest allowed norm of each perturbation, rounding error included, (n,) in float64."""
        return add_tolerance(self.radius(images)).flatten()

    def select(self, rows: Tensor) -> Budget:  # noqa: ARG002
        """Return the budget for a subset of the samples."""
        return self

    @property
    def shared_eps(self) -> float | None:
        """The radius in pixels if it is the same for all images, else None."""
        return self.eps if self.unit == "pixel" else None


@dataclass(frozen=True, eq=False)
class PerSampleBudget(Budget):
    """A budget with a different radius for each image, as bisection needs it."""

    radii: Tensor = field(default_factory=lambda: torch.zeros(0, 1, 1, 1))
    """(n, 1, 1, 1), in pixels."""

    def radius(self, images: Tensor) -> Tensor:  # noqa: ARG002
        """Return the radius of each image's ball in pixels, (n, 1, 1, 1)."""
        return self.radii

    def select(self, rows: Tensor) -> PerSampleBudget:
        """Return the budget for a subset of the samples."""
        return replace(self, radii=self.radii[rows])

    @property
    def shared_eps(self) -> None:
        """None, because the radii differ."""
        return None


def add_tolerance(radius: Tensor) -> Tensor:
    """Return radii in float64, enlarged by the rounding error that is allowed."""
    wide = radius.double()
    return wide + TOLERANCE * wide.clamp_min(1.0)


def make_budgets(eps: float | Sequence[float], norm: NormName = "linf", unit: Unit = "pixel") -> tuple[Budget, ...]:
    """Return one budget per distinct eps, smallest first."""
    is_sequence = not isinstance(eps, numbers.Real) and getattr(eps, "ndim", 1) > 0
    values: list[Any] = list(cast("Sequence[float]", eps)) if is_sequence else [eps]
    if not values:
        raise UserError("eps: the list is empty; pass at least one number.")
    distinct = {Budget(_to_python_number(value), norm, unit) for value in values}
    return tuple(sorted(distinct, key=lambda budget: budget.eps))


def _to_python_number(value: Any) -> Any:
    """Convert numbers of numpy and torch to float; return anything else unchanged, for `Budget` to reject."""
    if isinstance(value, int) and abs(value) > MAX_EPS:  # float() may overflow
        return math.copysign(math.inf, value)
    return value if isinstance(value, bool) or not hasattr(value, "__float__") else float(value)


def project(perturbed: Tensor, images: Tensor, ball: Norm, radius: Tensor) -> Tensor:
    """Return perturbed images projected onto the ball around the images, and clipped to [0,1]."""
    return (images + ball.project(perturbed - images, radius)).clamp(0.0, 1.0)


def random_start(images: Tensor, budget: Budget, draws: Draws, restart: int) -> Tensor:
    """Return a uniform random point of each image's ball, clipped to [0,1]; each restart gives another one."""
    offset = budget.ball.random(draws, tuple(images.shape[1:]), stream=restart)
    return (images + budget.radius(images) * offset).clamp(0.0, 1.0)
