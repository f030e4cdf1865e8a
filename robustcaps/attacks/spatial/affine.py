"""Affine maps of images: rotation, translation, scale and shear inside ranges (Engstrom et al. 2019)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.attacks.spatial.budgets import TransformationBudget
from robustcaps.errors import UserError
from robustcaps.options import NormName, Unit
from robustcaps.utils.affine_maps import transform_images

REFERENCE = 30.0
"""The eps in degrees that the ranges of translation, scale and shear are given for."""
TRANSLATION, SCALE, SHEAR = 0.1, 0.2, 10.0
"""Ranges at the reference: a share of the image's size, a share of the object's size, and degrees."""
MAX_ROTATION = 180.0


@dataclass(frozen=True)
class AffineBudget(TransformationBudget):
    """Rotations by up to eps degrees; the other ranges are given for 30 degrees and grow in proportion to eps."""

    norm: NormName = "affine"
    unit: Unit = "degrees"
    translation: float = TRANSLATION
    scale: float = SCALE
    shear: float = SHEAR

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps > MAX_ROTATION:
            raise UserError(f"eps: a rotation is at most {MAX_ROTATION:g} degrees, not {self.eps:g}.")
        _, translation, _, scale, shear = (self.eps * each for each in self._per_degree())
        for name, value, limit in (("translation", translation, 1), ("scale", scale, 1), ("shear", shear, 90)):
            if not 0 <= value < limit:
                raise UserError(f"{name}: at eps {self.eps:g} it is {value:g}; it must be from 0 to less than {limit}.")

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Degrees clockwise, shares of the image's size to the right and down, a share of the size, degrees."""
        return ("rotation", "right", "down", "scaling", "shearing")

    @property
    def norm_label(self) -> str:
        """The norm with those ranges that are not the usual ones, because accuracies under others do not compare."""
        usual = {"translation": TRANSLATION, "scale": SCALE, "shear": SHEAR}
        changed = [f"{name} {getattr(self, name):g}" for name, value in usual.items() if getattr(self, name) != value]
        return f"affine ({', '.join(changed)})" if changed else "affine"

    def _per_degree(self) -> tuple[float, ...]:
        shift = self.translation / REFERENCE
        return (1.0, shift, shift, self.scale / REFERENCE, self.shear / REFERENCE)

    def full_range(self) -> Tensor:
        return torch.tensor(self._per_degree(), dtype=torch.float64)

    def limits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        high = (self.eps * self.full_range()).to(images.device).expand(len(images), -1)
        return -high, high

    def move(self, images: Tensor, parameters: Tensor, *, anew: bool) -> Tensor:  # noqa: ARG002
        return transform_images(images, parameters)

    def grid(self, levels: int) -> Tensor:
        """Return points with `levels` rotations and three translations in each direction, the farthest first."""
        rotations = torch.linspace(-1.0, 1.0, levels, dtype=torch.float64).tolist()
        points = [(r, x, y, 0.0, 0.0) for r, x, y in itertools.product(rotations, (-1.0, 0.0, 1.0), (-1.0, 0.0, 1.0))]
        return torch.tensor(sorted(filter(any, points), key=lambda point: -math.hypot(*point)), dtype=torch.float64)
