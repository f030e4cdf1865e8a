"""Square tiles of images, so that rays are only cast at parts that they may hit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from robustcaps.data.protocol import PIXELS
from robustcaps.data.toys.scene import Scenes
from robustcaps.data.toys.solids import Floats, Triple, triple

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

TILE = 8
"""Width and height of a tile."""
ACROSS = PIXELS // TILE
TILES = ACROSS * ACROSS
"""Tiles in a picture."""
_FOCAL = 218.0
"""Focal length in pixels: a figure of radius 1 at distance 7 spans about 63 of the 96 pixels."""


@dataclass(frozen=True)
class Tasks:
    """Pairs of a part and a tile that it may touch."""

    part: Integers
    tile: Integers
    """Index over the tiles of all images."""


def tasks_of(scenes: Scenes, picture: Integers, points: Array) -> Tasks:
    """Return the tiles that the convex hull of each part's points (parts, k, 3) may touch in its picture."""
    seen = np.einsum("nij,nkj->nik", scenes.axes[picture], points - scenes.eye[picture, None])
    pixels = seen[:, 1:] / seen[:, :1] * _FOCAL + PIXELS / 2
    first = np.clip(np.floor(pixels.min(axis=2) / TILE), 0, ACROSS).astype(np.int64)
    last = np.clip(np.floor(pixels.max(axis=2) / TILE), -1, ACROSS - 1).astype(np.int64)
    wide, high = np.maximum(last - first + 1, 0).T
    part, within = unfold(wide * high)
    column = first[part, 0] + within % wide[part]
    row = first[part, 1] + within // wide[part]
    return Tasks(part, picture[part] * TILES + row * ACROSS + column)


def unfold(counts: Integers) -> tuple[Integers, Integers]:
    """Return which group each of sum(counts) members belongs to, and its place within the group."""
    group = np.repeat(np.arange(len(counts)), counts)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)


def columns(values: Array) -> Triple:
    """Return the components of (n, 3) values as three float32 columns (n, 1)."""
    return triple(values.T.astype(np.float32)[:, :, None])


def rays(axes: Array, tile: Integers) -> tuple[Triple, Triple]:
    """Return the rays through the pixels of tiles: forward + x right + y down, and the part x right + y down alone.

    `axes` (tiles, 3, 3) holds the vectors forward, right and down, in the coordinate system of the rays.
    """
    left = (tile % ACROSS * TILE - PIXELS / 2) / _FOCAL
    top = (tile % TILES // ACROSS * TILE - PIXELS / 2) / _FOCAL
    corner = left[:, None] * axes[:, 1] + top[:, None] * axes[:, 2]
    aside = triple(
        start + (right * _RIGHT + down * _DOWN)
        for start, right, down in zip(columns(corner), columns(axes[:, 1]), columns(axes[:, 2]), strict=True)
    )
    return triple(forward + side for forward, side in zip(columns(axes[:, 0]), aside, strict=True)), aside


def picture_from(tiled: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return pictures (n, 96, 96) put together from their tiles (n * tiles, pixels of a tile)."""
    cut = tiled.reshape(-1, ACROSS, ACROSS, TILE, TILE)
    return cut.transpose(0, 1, 3, 2, 4).reshape(-1, PIXELS, PIXELS)


def _pixels_of_a_tile() -> tuple[Floats, Floats]:
    """Return how far the pixels' middles lie from their tile's corner, to the right and down, in focal lengths."""
    down, right = np.divmod(np.arange(TILE * TILE), TILE)
    return ((right + 0.5) / _FOCAL).astype(np.float32), ((down + 0.5) / _FOCAL).astype(np.float32)


_RIGHT, _DOWN = _pixels_of_a_tile()
