"""Toys from any side: azimuth, elevation and the light's place, continuously, not only those of the dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from torch import Tensor

from robustcaps.data.base import Angles, Renderer
from robustcaps.data.protocol import ELEVATIONS, Eye, shrink
from robustcaps.data.toys.render import render
from robustcaps.data.toys.scene import light_height_range, light_heights, scenes_of


@dataclass(frozen=True)
class ToysRenderer(Renderer):
    """Draws toys as the dataset does. Elevations and heights of the light stay within the ranges of the dataset."""

    eyes: tuple[Eye, ...]
    crop: bool
    angles: ClassVar[tuple[str, ...]] = ("azimuth", "elevation", "light_right", "light_height")

    def limits(self, factors: pd.DataFrame) -> tuple[Angles, Angles]:
        """Return the limits of each angle; those around the figure are free."""
        free = np.full(len(factors), np.inf)
        own = factors["elevation"].to_numpy(dtype=float), light_heights(factors)
        (lowest, highest), (low_light, high_light) = (min(ELEVATIONS), max(ELEVATIONS)), light_height_range()
        low = np.stack([-free, lowest - own[0], -free, low_light - own[1]], axis=1)
        high = np.stack([free, highest - own[0], free, high_light - own[1]], axis=1)
        return low, high

    def draw(self, factors: pd.DataFrame, changes: Angles) -> Tensor:
        """Return the images of samples, each angle changed by so many degrees."""
        moved = factors.assign(
            azimuth=factors["azimuth"] + changes[:, 0],
            elevation=factors["elevation"] + changes[:, 1],
            light_right=changes[:, 2],
            light_height=changes[:, 3],
        )
        pixels = np.stack([render(scenes_of(moved, eye)) for eye in self.eyes], axis=1)
        return shrink(pixels, crop=self.crop)
