"""Scenes from factors: camera position and orientation, and lights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.data.protocol import CATEGORIES, Eye
from robustcaps.data.toys.shapes import INSTANCES_PER_CATEGORY, figures

Array = NDArray[np.float64]

DISTANCE = 7.0
"""From the eye to the middle of the figure, whose bounding sphere has radius 1."""
BASELINE = 0.6
"""Between the two eyes."""

_DARKEST, _LIGHTER = 0.34, 0.02
"""Albedo of the darkest instance, and steps to lighter ones; the same in all categories and so uninformative."""

_LIGHTS = np.array(
    (
        # degrees to the viewer's right, degrees above the floor, key strength, ambient strength
        (-50.0, 50.0, 0.60, 0.45),
        (55.0, 45.0, 0.70, 0.35),
        (10.0, 75.0, 0.55, 0.42),
        (-130.0, 50.0, 0.50, 0.50),
        (105.0, 40.0, 0.75, 0.32),
        (-15.0, 35.0, 0.45, 0.60),
    )
)
"""Six key lights, fixed beside the camera while the figure turns, each with its share of even light from above."""


@dataclass(frozen=True)
class Scenes:
    """Figures, cameras and lights of n images; every array has n rows."""

    figure: NDArray[np.int64]
    """Position in `shapes.figures()`."""
    eye: Array
    """(n, 3) where the eye is."""
    axes: Array
    """(n, 3, 3) unit rows: forward, right and down, as the eye sees them."""
    light: Array
    """(n, 3) unit vectors towards the key light."""
    key: Array
    """(n,) strength of the key light."""
    ambient: Array
    """(n,) strength of the even light."""
    albedo: Array
    """(n,) how light the figure's paint is."""

    def __len__(self) -> int:
        return len(self.figure)

    def __getitem__(self, rows: slice) -> Self:
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))


def scenes_of(factors: pd.DataFrame, eye: Eye) -> Scenes:
    """Return the scenes of a table of factors, seen by one of the two eyes.

    `light_right` and `light_height`, where the table has them, move the key light by so many degrees.
    """
    category = factors["category"].map({name: number for number, name in enumerate(CATEGORIES)}).to_numpy()
    figure = category * INSTANCES_PER_CATEGORY + factors["instance"].to_numpy()
    azimuth = factors["azimuth"].to_numpy(dtype=float)
    position, axes = _camera(figure, factors["elevation"].to_numpy(dtype=float), azimuth, eye)
    albedo = _DARKEST + _LIGHTER * (factors["instance"].to_numpy() * 7 % INSTANCES_PER_CATEGORY)
    right, height, key, ambient = _LIGHTS[factors["lighting"].to_numpy()].T
    if "light_right" in factors:
        right, height = right + factors["light_right"].to_numpy(), height + factors["light_height"].to_numpy()
    return Scenes(figure, position, axes, _towards(azimuth + right, height), key, ambient, albedo)


def light_heights(factors: pd.DataFrame) -> Array:
    """Return how many degrees above the floor each sample's key light stands."""
    heights: Array = _LIGHTS[factors["lighting"].to_numpy(), 1]
    return heights


def light_height_range() -> tuple[float, float]:
    """Return the lowest and the highest key light, in degrees above the floor."""
    return float(_LIGHTS[:, 1].min()), float(_LIGHTS[:, 1].max())


def _camera(figure: NDArray[np.int64], elevation: Array, azimuth: Array, eye: Eye) -> tuple[Array, Array]:
    """Return where the eye is and its axes, looking at the middle of the figure."""
    heights = np.array([toy.height for toy in figures()])
    middle = heights[figure, None] / 2 * np.array((0.0, 0.0, 1.0))
    back = _towards(azimuth, elevation)
    sideways = _unit(np.cross((0.0, 0.0, 1.0), back))
    offset = BASELINE / 2 if eye == "right" else -BASELINE / 2
    position = middle + DISTANCE * back + offset * sideways
    forward = _unit(middle - position)
    right = _unit(np.cross(forward, (0.0, 0.0, 1.0)))
    return position, np.stack([forward, right, np.cross(forward, right)], axis=1)


def _towards(azimuth: Array, elevation: Array) -> Array:
    """Return unit vectors at these angles (degrees), azimuth 0 being straight ahead of the figure."""
    turn, rise = np.radians(azimuth), np.radians(elevation)
    return np.stack([np.cos(rise) * np.cos(turn), np.cos(rise) * np.sin(turn), np.sin(rise)], axis=-1)


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit
