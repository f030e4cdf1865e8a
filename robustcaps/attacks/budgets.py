"""Perturbation budgets: an eps, a norm, and the unit that eps is measured in."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import torch
from torch import Tensor

from robustcaps.attacks.norms import NORMS, TOLERANCE, Norm
from robustcaps.data.base import Data
from robustcaps.errors import UserError, did_you_mean
from robustcaps.options import NormName, Unit
from robustcaps.utils.sample_random import Draws

__all__ = [
    "MAX_EPS",
    "TOLERANCE",
    "UNITS",
    "Budget",
    "PerSampleBudget",
    "Unit",
    "check_norm",
    "make_budgets",
    "project",
    "random_start",
]

MAX_EPS = 1e6
"""Larger values would overflow in float32."""
UNITS: dict[NormName, tuple[Unit, ...]] = {
    **dict.fromkeys(("linf", "l2", "l1"), ("pixel", "std")),
    "l0": ("count",),
    **dict.fromkeys(("affine", "viewpoint"), ("degrees",)),
}
"""Units that eps can be measured in, the default first."""


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
        check_norm(self.norm)
        if self.eps > 1 and (self.norm, self.unit) == ("linf", "pixel"):
            raise UserError(f"eps: must not be above 1, the range of pixels, but is {self.eps:g}; 8/255 is 0.0314.")
        known = sorted({unit for units in UNITS.values() for unit in units})
        if self.unit not in known:
            raise UserError(f"unit: unknown unit '{self.unit}'. {did_you_mean(str(self.unit), known)}")
        if self.unit not in UNITS[self.norm]:
            raise UserError(f"unit: {self.norm} is measured in {' or '.join(UNITS[self.norm])}, not '{self.unit}'.")

    @property
    def norm_label(self) -> str:
        """The norm as tables show it."""
        return self.norm

    @property
    def ball(self) -> Norm:
        """The geometry of the norm."""
        return NORMS[self.norm]

    def radius(self, images: Tensor) -> Tensor:
        """Return the radius of each image's ball in pixels (l0: in values), (n, 1, 1, 1)."""
        if self.unit != "std":
            return torch.full((len(images), 1, 1, 1), self.eps, dtype=images.dtype, device=images.device)
        return self.eps * images.std((1, 2, 3), keepdim=True, correction=0)

    def max_size(self, images: Tensor) -> Tensor:
        """Return the largest allowed norm of each perturbation, rounding error included, (n,) in float64."""
        return self.ball.max_size(self.radius(images), images[0].numel() if len(images) else 0).flatten()

    def select(self, rows: Tensor) -> Budget:  # noqa: ARG002
        """Return the budget for a subset of the samples."""
        return self

    def untrusted_copy(self) -> Self:
        """Return a copy for an attack to hold, so that nothing it does to it reaches the checks."""
        return copy.copy(self)

    def for_samples(self, data: Data, rows: Tensor) -> Budget:  # noqa: ARG002
        """Return the budget of some samples of a dataset."""
        return self

    @property
    def shared_eps(self) -> float | None:
        """The radius in pixels if it is the same for all images, else None."""
        return None if self.unit == "std" else self.eps


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


def check_norm(norm: str) -> None:
    """Raise a UserError that lists the norms if there is none of that name."""
    if norm not in UNITS:
        raise UserError(f"norm: unknown norm '{norm}'. {did_you_mean(str(norm), UNITS)}")


def make_budgets(
    eps: float | Sequence[float],
    norm: NormName = "linf",
    unit: Unit | None = None,
    *,
    kind: type[Budget] = Budget,
    **ranges: float,
) -> tuple[Budget, ...]:
    """Return one budget per distinct eps, smallest first; `kind` is its class, `ranges` are further fields of it."""
    is_sequence = not isinstance(eps, numbers.Real) and getattr(eps, "ndim", 1) > 0
    values: list[Any] = list(cast("Sequence[float]", eps)) if is_sequence else [eps]
    if not values:
        raise UserError("eps: the list is empty; pass at least one number.")
    check_norm(norm)
    distinct = {kind(_to_python_number(value), norm, unit or UNITS[norm][0], **ranges) for value in values}
    return tuple(sorted(distinct, key=lambda budget: budget.eps))


def _to_python_number(value: Any) -> Any:
    """Convert numbers of numpy and torch to float; return anything else unchanged, for `Budget` to reject."""
    if isinstance(value, int) and abs(value) > MAX_EPS:  # float() may overflow
        return math.copysign(math.inf, value)
    return value if isinstance(value, bool) or not hasattr(value, "__float__") else float(value)


def project(perturbed: Tensor, images: Tensor, ball: Norm, radius: Tensor) -> Tensor:
    """Return perturbed images projected onto the ball around the images, and clipped to [0,1]."""
    return (images + ball.project(perturbed - images, radius)).clamp_(0.0, 1.0)


def random_start(images: Tensor, budget: Budget, draws: Draws, restart: int) -> Tensor:
    """Return a uniform random point of each image's ball, clipped to [0,1]; each restart gives another one."""
    offset = budget.ball.random_within(budget.radius(images), draws, tuple(images.shape[1:]), stream=restart)
    return (images + offset).clamp(0.0, 1.0)
