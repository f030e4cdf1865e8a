"""How far an attack may go: an eps, a norm, and the unit the eps is counted in."""

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

Unit = Literal["pixel", "std"]

LARGEST = 1e6
"""No image is farther from another; beyond it float32 would overflow."""
TOLERANCE = 1e-6
"""How far outside the box or the ball (relative to radii above 1) rounding may carry an image."""


@dataclass(frozen=True)
class Budget:
    """A ball around each image. Unit 'pixel': eps of the range [0,1]; 'std': eps standard deviations of that image."""

    eps: float
    norm: NormName = "linf"
    unit: Unit = "pixel"

    def __post_init__(self) -> None:
        if isinstance(self.eps, bool) or not isinstance(self.eps, (int, float)) or not math.isfinite(self.eps):
            raise UserError(f"eps: must be a finite number, not {self.eps!r}.")
        if self.eps > LARGEST:
            raise UserError(f"eps: must not be above {LARGEST:g}, but is {self.eps}.")
        if self.eps < 0:
            raise UserError(f"eps: must not be negative, but is {self.eps}.")
        if self.norm not in NORMS:
            raise UserError(f"norm: unknown norm '{self.norm}'. {did_you_mean(str(self.norm), NORMS)}")
        if self.unit not in ("pixel", "std"):
            raise UserError(f"unit: unknown unit '{self.unit}'. {did_you_mean(str(self.unit), ('pixel', 'std'))}")

    @property
    def ball(self) -> Norm:
        """The norm's geometry."""
        return NORMS[self.norm]

    def radius(self, images: Tensor) -> Tensor:
        """Return the radius of each image's ball in pixels, (n, 1, 1, 1)."""
        if self.unit == "pixel":
            return torch.full((len(images), 1, 1, 1), self.eps, dtype=images.dtype, device=images.device)
        return self.eps * images.std((1, 2, 3), keepdim=True, correction=0)

    def reach(self, images: Tensor) -> Tensor:
        """Return how large each image's perturbation may be, (n,) in float64: the radius, and what rounding adds."""
        return reach(self.radius(images)).flatten()

    def select(self, rows: Tensor) -> Budget:  # noqa: ARG002
        """Return the budget of some of the samples: the same for all of them, unless each has a radius of its own."""
        return self

    @property
    def shared_eps(self) -> float | None:
        """The radius in pixels where all images have the same one, else None."""
        return self.eps if self.unit == "pixel" else None


@dataclass(frozen=True, eq=False)
class Radii(Budget):
    """A ball of its own size around each image: for searches that try another eps on every sample."""

    radii: Tensor = field(default_factory=lambda: torch.zeros(0, 1, 1, 1))
    """(n, 1, 1, 1), in pixels."""

    def radius(self, images: Tensor) -> Tensor:  # noqa: ARG002
        """Return the radius of each image's ball in pixels, (n, 1, 1, 1)."""
        return self.radii

    def select(self, rows: Tensor) -> Radii:
        """Return the budget of some of the samples."""
        return replace(self, radii=self.radii[rows])

    @property
    def shared_eps(self) -> None:
        """None: every image has its own."""
        return None


def reach(radius: Tensor) -> Tensor:
    """Return radii in float64, and what rounding may add to them."""
    wide = radius.double()
    return wide + TOLERANCE * wide.clamp_min(1.0)


def budgets(eps: float | Sequence[float], norm: NormName = "linf", unit: Unit = "pixel") -> tuple[Budget, ...]:
    """Return one budget per eps, smallest first, each eps once."""
    several = not isinstance(eps, numbers.Real) and getattr(eps, "ndim", 1) > 0
    values: list[Any] = list(cast("Sequence[float]", eps)) if several else [eps]
    if not values:
        raise UserError("eps: the list is empty; give at least one number.")
    made = {Budget(_plain(value), norm, unit) for value in values}
    return tuple(sorted(made, key=lambda budget: budget.eps))


def _plain(value: Any) -> Any:
    """Return numpy's and torch's numbers as Python's; what is no number stays, to be refused."""
    return value if isinstance(value, bool) or not hasattr(value, "__float__") else float(value)
