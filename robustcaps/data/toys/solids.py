"""Rays against the three unit solids of `parts`: where a ray enters, and the surface normal there.

Rays come as origins o and directions d, each three arrays that broadcast; `widths` holds, for x and for y, the offset
and the slope of the solid's half width w(z) = offset + slope * z. A division by zero stands for a ray that runs along
a face: the infinity or NaN it gives never passes a comparison, so it counts as a miss.

Only operations that round once are used (no matrix products, no sums), so every machine draws the same picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustcaps.data.toys.parts import Kind

Floats = NDArray[np.floating[Any]]
"""float32, though numpy's types cannot follow it through arithmetic."""
Triple = tuple[Floats, Floats, Floats]
Width = tuple[Floats, Floats]
Widths = tuple[Width, Width]


def enter(kind: Kind, o: Triple, d: Triple, widths: Widths) -> Floats:
    """Return the first s at which o + s d meets the solid, from outside; infinity where it misses."""
    if kind is Kind.ELLIPSOID:
        return _enter_ball(o, d)
    return _enter_frustum(o, d, widths[0]) if kind is Kind.FRUSTUM else _enter_wedge(o, d, widths)


def normal(kind: Kind, u: Triple, widths: Widths) -> Triple:
    """Return an outward normal, of any length, at a point u of the surface."""
    if kind is Kind.ELLIPSOID:
        return u
    return _normal_frustum(u, widths[0]) if kind is Kind.FRUSTUM else _normal_wedge(u, widths)


def dot(a: Triple, b: Triple) -> Floats:
    """Return the inner product of two triples."""
    product: Floats = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def triple(components: Iterable[Floats]) -> Triple:
    """Return three components as a triple."""
    x, y, z = components
    return x, y, z


def _enter_ball(o: Triple, d: Triple) -> Floats:
    """The smaller root of |o + s d|^2 = 1."""
    a, b, c = dot(d, d), dot(o, d), dot(o, o) - 1
    discriminant = b * b - a * c
    s = (-b - np.sqrt(np.maximum(discriminant, 0))) / a
    return _keep(s, discriminant >= 0)


def _enter_frustum(o: Triple, d: Triple, width: Width) -> Floats:
    """The nearest of the two crossings of the mantle and the two of the caps, of those that lie on the solid."""
    offset, slope = width
    w, fall = offset + slope * o[2], slope * d[2]
    a = d[0] * d[0] + d[1] * d[1] - fall * fall
    b = o[0] * d[0] + o[1] * d[1] - w * fall
    c = o[0] * o[0] + o[1] * o[1] - w * w
    discriminant = b * b - a * c
    q = -(b + np.copysign(np.sqrt(np.maximum(discriminant, 0)), b))
    crossings = [_keep(s, (np.abs(o[2] + s * d[2]) <= 1) & (discriminant >= 0)) for s in (q / a, c / q)]
    for cap in (-1, 1):
        s = (cap - o[2]) / d[2]
        x, y, radius = o[0] + s * d[0], o[1] + s * d[1], offset + slope * cap
        crossings.append(_keep(s, x * x + y * y <= radius * radius))
    return np.minimum(np.minimum(*crossings[:2]), np.minimum(*crossings[2:]))


def _enter_wedge(o: Triple, d: Triple, widths: Widths) -> Floats:
    """Clip the ray at the six planes: it enters at the last of those that it crosses inwards."""
    near, far = _clip(1 - o[2], d[2])
    planes = [(1 + o[2], -d[2])]
    for axis, (offset, slope) in enumerate(widths):
        w, fall = offset + slope * o[2], slope * d[2]
        planes += [(w - o[axis], d[axis] - fall), (w + o[axis], -d[axis] - fall)]
    for room, speed in planes:
        first, last = _clip(room, speed)
        near, far = np.maximum(near, first), np.minimum(far, last)
    return _keep(near, near <= far)


def _clip(room: Floats, speed: Floats) -> tuple[Floats, Floats]:
    """Return the span of all s with s * speed <= room."""
    s = room / speed
    bound = np.copysign(np.float32(np.inf), -speed)
    return np.minimum(s, bound), np.maximum(s, bound)


def _keep(s: Floats, valid: NDArray[np.bool_]) -> Floats:
    """Put infinity where s is not valid."""
    np.copyto(s, np.inf, where=~valid)
    return s


def _normal_frustum(u: Triple, width: Width) -> Triple:
    x, y, z = u
    offset, slope = width
    w = offset + slope * z
    mantle = (x * x + y * y >= z * z * w * w).astype(np.float32)
    return x * mantle, y * mantle, z * (1 - mantle) - slope * w * mantle


def _normal_wedge(u: Triple, widths: Widths) -> Triple:
    """The face is the one whose bound the point comes nearest to, in that bound's measure."""
    x, y, z = u
    (offset_x, slope_x), (offset_y, slope_y) = widths
    along = np.abs(x) / np.maximum(offset_x + slope_x * z, 1e-6)
    across = np.abs(y) / np.maximum(offset_y + slope_y * z, 1e-6)
    on_x = ((along >= across) & (along >= np.abs(z))).astype(np.float32)
    on_y = (across >= np.abs(z)).astype(np.float32) * (1 - on_x)
    on_z = 1 - on_x - on_y
    return np.sign(x) * on_x, np.sign(y) * on_y, np.sign(z) * on_z - slope_x * on_x - slope_y * on_y
