"""Building blocks of figures: convex parts, placed in a frame with x forward, y left and z up.

A part is the image of a unit solid under `matrix @ unit + centre`. There are three unit solids:
- an ellipsoid: the unit ball;
- a frustum: |z| <= 1, x^2 + y^2 <= w(z)^2, the round solids (cylinder, cone);
- a wedge: |z| <= 1, |x| <= w_x(z), |y| <= w_y(z), the flat ones (box, wing, roof);
where each w falls linearly from 1 at z = -1 to the part's taper at z = +1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Vector = tuple[float, float, float]
Array = NDArray[np.float64]


class Kind(IntEnum):
    """The unit solid that a part is a transform of."""

    ELLIPSOID = 0
    FRUSTUM = 1
    WEDGE = 2


@dataclass(frozen=True, eq=False)
class Part:
    """One convex piece of a figure."""

    kind: Kind
    matrix: Array
    centre: Array
    taper: tuple[float, float] = (1.0, 1.0)

    def corners(self) -> Array:
        """Return eight points whose convex hull contains the part."""
        unit = [
            (x * (self.taper[0] if z > 0 else 1.0), y * (self.taper[1] if z > 0 else 1.0), z)
            for x, y, z in itertools.product((-1.0, 1.0), repeat=3)
        ]
        return np.array(unit) @ self.matrix.T + self.centre

    def reach(self) -> Array:
        """Return the half extents of the part's bounding box: exact for ellipsoids and wedges, close for frusta."""
        half: Array = np.linalg.norm(self.matrix, axis=1)
        if self.kind is not Kind.ELLIPSOID:
            half = np.max(np.abs(self.corners() - self.centre), axis=0)
        return half


Parts = list[Part]


def ellipsoid(centre: Vector, radii: Vector, pitch: float = 0.0) -> Part:
    """Return an ellipsoid; a positive pitch (degrees) raises its front."""
    return Part(Kind.ELLIPSOID, _pitch(pitch) @ np.diag(radii), np.array(centre, dtype=float))


def ball(centre: Vector, radius: float) -> Part:
    """Return a sphere."""
    return ellipsoid(centre, (radius, radius, radius))


def rod(start: Vector, end: Vector, radius: float, end_radius: float | None = None, flat: float = 1.0) -> Part:
    """Return a round rod from start to end, tapering to `end_radius`; `flat` scales its second cross axis."""
    first, last = np.array(start, dtype=float), np.array(end, dtype=float)
    along = (last - first) / 2
    side, up = _across(along)
    taper = 1.0 if end_radius is None else end_radius / radius
    matrix = np.stack([side * radius, up * radius * flat, along], axis=1)
    return Part(Kind.FRUSTUM, matrix, (first + last) / 2, (taper, taper))


def cone(base: Vector, tip: Vector, radius: float) -> Part:
    """Return a pointed cone."""
    return rod(base, tip, radius, 0.0)


def wheel(centre: Vector, radius: float, width: float) -> Part:
    """Return a wheel: a cylinder whose axle points sideways."""
    x, y, z = centre
    return rod((x, y - width / 2, z), (x, y + width / 2, z), radius)


def box(
    centre: Vector, size: Vector, *, taper: tuple[float, float] = (1.0, 1.0), lean: float = 0.0, pitch: float = 0.0
) -> Part:
    """Return a box of full extents `size`, its top narrowed by `taper` (length, width) and moved forward by `lean`."""
    matrix = np.diag(size) / 2
    matrix[0, 2] = lean / 2
    return Part(Kind.WEDGE, _pitch(pitch) @ matrix, np.array(centre, dtype=float), taper)


def slab(root: Vector, tip: Vector, chord: float, tip_chord: float, thickness: float) -> Part:
    """Return a wing or fin from the middle of its root chord to that of its tip; chords run along x."""
    first, last = np.array(root, dtype=float), np.array(tip, dtype=float)
    along = (last - first) / 2
    normal = np.cross(along, (1.0, 0.0, 0.0))
    normal /= np.linalg.norm(normal)
    matrix = np.stack([np.array((chord / 2, 0.0, 0.0)), normal * thickness / 2, along], axis=1)
    return Part(Kind.WEDGE, matrix, (first + last) / 2, (tip_chord / chord, 1.0))


def mirrored(*parts: Part) -> Parts:
    """Return the parts and their mirror images on the other side (y -> -y)."""
    flip = np.diag((1.0, -1.0, 1.0))
    return [*parts, *(replace(part, matrix=flip @ part.matrix, centre=flip @ part.centre) for part in parts)]


def moved(parts: Sequence[Part], by: Vector, *, pitch: float = 0.0) -> Parts:
    """Return the parts pitched about the origin (degrees, front up), then shifted."""
    turn = _pitch(pitch)
    return [replace(part, matrix=turn @ part.matrix, centre=turn @ part.centre + np.array(by)) for part in parts]


def normalised(parts: Sequence[Part], size: float) -> Parts:
    """Return a figure that stands on z = 0 over the origin, scaled to a bounding sphere of radius `size`."""
    low = np.min([part.centre - part.reach() for part in parts], axis=0)
    high = np.max([part.centre + part.reach() for part in parts], axis=0)
    middle = (low + high) / 2
    unit = max(_farthest(part, middle) for part in parts) / size
    foot = np.array((middle[0], middle[1], low[2]))
    return [replace(part, matrix=part.matrix / unit, centre=(part.centre - foot) / unit) for part in parts]


def _farthest(part: Part, point: Array) -> float:
    """Return the largest distance of the part from a point (ellipsoids: from the six ends of their axes)."""
    if part.kind is Kind.ELLIPSOID:
        points = np.concatenate([part.matrix.T, -part.matrix.T]) + part.centre
    else:
        points = part.corners()
    return float(np.linalg.norm(points - point, axis=1).max())


def _pitch(degrees: float) -> Array:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array(((cos, 0.0, -sin), (0.0, 1.0, 0.0), (sin, 0.0, cos)))


def _across(along: Array) -> tuple[Array, Array]:
    """Return two unit vectors across a direction, the first as horizontal as possible."""
    level = np.cross(along, (0.0, 0.0, 1.0))
    if np.linalg.norm(level) < 1e-9 * np.linalg.norm(along):
        level = np.array((0.0, 1.0, 0.0))
    side = level / np.linalg.norm(level)
    up = np.cross(along, side)
    return side, up / np.linalg.norm(up)
