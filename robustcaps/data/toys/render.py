"""Rendering by ray casting: from the eye through every pixel to a surface, and from there to the light.

A task is a part and a tile that it may touch; the rays of all tasks of one kind of part are cast at once, as arrays
(tasks, pixels of a tile). float64 places the parts, float32 does the work for every pixel.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustcaps.data.protocol import Pixels
from robustcaps.data.toys.parts import Kind
from robustcaps.data.toys.scene import Scenes
from robustcaps.data.toys.shapes import figures
from robustcaps.data.toys.solids import Floats, Triple, Widths, dot, enter, normal, triple
from robustcaps.data.toys.tiles import (
    TILE,
    TILES,
    Array,
    Integers,
    Tasks,
    columns,
    picture_from,
    rays,
    tasks_of,
    unfold,
)

_BATCH = 15
"""Images rendered at once: enough to amortise the calls, few enough for the CPU cache."""
_FLOOR = 0xFFFF
"""The number of the floor, which no part has."""
_FLOOR_ALBEDO, _SHINE = 0.9, 0.15
_AMBIENT_SHARE = 0.5
"""Share of the key light that reaches shadows as ambient light."""


def render(scenes: Scenes) -> Pixels:
    """Return the pictures (n, 96, 96) of some scenes."""
    starts = range(0, len(scenes), _BATCH)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.concatenate([_draw(scenes[start : start + _BATCH]) for start in starts])


def _draw(scenes: Scenes) -> Pixels:
    parts = _parts_in(scenes)
    surface = _find_surfaces(scenes, parts)
    light = _shade(scenes, surface, _shadow(scenes, parts, surface))
    return picture_from(np.rint(np.clip(light, 0, 1) * 255).astype(np.uint8))


@dataclass(frozen=True)
class _Parts:
    """Parts of one kind; every array has a row for each."""

    kind: Kind
    number: Integers
    """Unique among the parts of all kinds."""
    picture: Integers
    """Which picture (in `_all_parts`: which figure) they belong to."""
    inverse: Array
    """(n, 3, 3) from space into the unit solid's space."""
    centre: Array
    widths: NDArray[np.float32]
    """(n, 2, 2) for x and y: offset and slope of the half width."""
    corners: Array
    """(n, 8, 3) points whose hull contains the part."""

    def widths_of(self, rows: Integers) -> Widths:
        """Return the half widths of some of the parts, one by one."""
        (a, b), (c, d) = np.moveaxis(self.widths[rows], (-2, -1), (0, 1))
        return (a, b), (c, d)


@functools.cache
def _all_parts(kind: Kind) -> tuple[Integers, _Parts]:
    """Return where each figure's parts of one kind start, and the parts of all figures."""
    parts = [part for figure in figures() for part in figure.parts if part.kind is kind]
    counts = [sum(part.kind is kind for part in figure.parts) for figure in figures()]
    taper = np.array([part.taper for part in parts])
    stock = _Parts(
        kind=kind,
        number=np.arange(len(parts)),
        picture=np.repeat(np.arange(len(counts)), counts),
        inverse=np.array([np.linalg.inv(part.matrix) for part in parts]),
        centre=np.array([part.centre for part in parts]),
        widths=np.stack([(1 + taper) / 2, (taper - 1) / 2], axis=-1).astype(np.float32),
        corners=np.array([part.corners() for part in parts]),
    )
    return np.cumsum([0, *counts]), stock


def _parts_in(scenes: Scenes) -> list[_Parts]:
    """Return the parts of every image's figure, with consecutive numbers."""
    found, total = [], 0
    for kind in Kind:
        starts, stock = _all_parts(kind)
        first = starts[scenes.figure]
        picture, within = unfold(starts[scenes.figure + 1] - first)
        rows = first[picture] + within
        number = total + np.arange(len(rows))
        total += len(rows)
        shape = (stock.inverse[rows], stock.centre[rows], stock.widths[rows], stock.corners[rows])
        found.append(_Parts(kind, number, picture, *shape))
    return found


@dataclass(frozen=True)
class _Cast:
    """Rays from the eyes at the parts of one kind, in the unit solids' spaces."""

    parts: _Parts
    tasks: Tasks
    origin: Triple
    ray: Triple
    step: Floats
    """Where they enter, infinity where they miss."""
    rank: Integers
    """Distance from the eye and number of the part in one integer: the smallest names the nearest part."""


@dataclass(frozen=True)
class _Surface:
    """What every pixel sees first; all arrays are (tiles of all pictures, pixels of a tile)."""

    number: Integers
    point: Triple
    normal: Triple
    ray: Triple


def _rank(distance: Floats, number: Integers | int) -> Integers:
    """Positive floats are ordered like their bits."""
    return distance.view(np.int32).astype(np.int64) * (_FLOOR + 1) + number


def _cast(scenes: Scenes, parts: _Parts) -> _Cast:
    """Cast the eyes' rays at the parts, from a plane through each part's centre, which keeps float32 exact enough."""
    tasks = tasks_of(scenes, parts.picture, parts.corners)
    eye, axes = scenes.eye[parts.picture], scenes.axes[parts.picture]
    depth = np.einsum("ni,ni->n", axes[:, 0], parts.centre - eye)
    start = np.einsum("nij,nj->ni", parts.inverse, eye + depth[:, None] * axes[:, 0] - parts.centre)
    inward = np.einsum("nij,nkj->nki", parts.inverse, axes)
    ray, aside = rays(inward[tasks.part], tasks.tile)
    far = depth[tasks.part, None].astype(np.float32)
    origin = triple(base + far * side for base, side in zip(columns(start[tasks.part]), aside, strict=True))
    step = enter(parts.kind, origin, ray, parts.widths_of(tasks.part[:, None]))
    rank = _rank(far + step, parts.number[tasks.part, None])
    return _Cast(parts, tasks, origin, ray, step, rank)


def _find_surfaces(scenes: Scenes, parts: list[_Parts]) -> _Surface:
    """Find the nearest surface along every ray from the eyes: a part's or the floor's."""
    tile = np.arange(len(scenes) * TILES)
    ray, _ = rays(scenes.axes[tile // TILES], tile)
    eye = columns(scenes.eye[tile // TILES])
    nearest = _rank(-eye[2] / ray[2], _FLOOR)
    casts = [_cast(scenes, same_kind) for same_kind in parts]
    for cast in casts:
        pixels = cast.tasks.tile[:, None] * (TILE * TILE) + np.arange(TILE * TILE)
        np.minimum.at(nearest.reshape(-1), pixels.reshape(-1), cast.rank.reshape(-1))
    normals = np.zeros_like(ray[0]), np.zeros_like(ray[0]), np.ones_like(ray[0])
    for cast in casts:
        _write_normals(cast, nearest, normals)
    distance = (nearest // (_FLOOR + 1)).astype(np.int32).view(np.float32)
    point = triple(at + distance * way for at, way in zip(eye, ray, strict=True))
    return _Surface(nearest % (_FLOOR + 1), point, normals, ray)


def _write_normals(cast: _Cast, nearest: Integers, normals: Triple) -> None:
    """Write the unit normals of this cast's parts where they are nearest."""
    task, within = np.nonzero(cast.rank == nearest[cast.tasks.tile])
    part, step = cast.tasks.part[task], cast.step[task, within]
    touched = triple(o[task, within] + step * d[task, within] for o, d in zip(cast.origin, cast.ray, strict=True))
    local = normal(cast.parts.kind, touched, cast.parts.widths_of(part))
    turn = cast.parts.inverse[part].transpose(2, 1, 0).astype(np.float32)
    world = triple(dot(triple(axis), local) for axis in turn)
    length = np.sqrt(dot(world, world))
    for buffer, values in zip(normals, world, strict=True):
        buffer[cast.tasks.tile[task], within] = values / length


def _shadow(scenes: Scenes, parts: list[_Parts], surface: _Surface) -> Floats:
    """Return 1 where the key light is visible and 0 where a part occludes it (no convex part occludes itself)."""
    free = np.ones_like(surface.point[0])
    for same_kind in parts:
        light = scenes.light[same_kind.picture]
        fall = same_kind.corners[..., 2:] / light[:, None, 2:]
        swept = np.concatenate([same_kind.corners, same_kind.corners - fall * light[:, None]], axis=1)
        tasks = tasks_of(scenes, same_kind.picture, swept)
        inverse = same_kind.inverse[tasks.part]
        point = triple(axis[tasks.tile] for axis in surface.point)
        shift = columns(np.einsum("nij,nj->ni", inverse, same_kind.centre[tasks.part]))
        origin = triple(dot(columns(inverse[:, axis]), point) - shift[axis] for axis in range(3))
        ray = columns(np.einsum("nij,nj->ni", inverse, light[tasks.part]))
        step = enter(same_kind.kind, origin, ray, same_kind.widths_of(tasks.part[:, None]))
        other = surface.number[tasks.tile] != same_kind.number[tasks.part, None]
        task, within = np.nonzero((step > 0) & (step < np.inf) & other)
        free[tasks.tile[task], within] = 0
    return free


def _shade(scenes: Scenes, surface: _Surface, free: Floats) -> Floats:
    """Return the brightness of each pixel: Lambertian shading, ambient light, and a Blinn highlight."""
    picture = np.arange(len(free)) // TILES
    light = columns(scenes.light[picture])
    key, ambient, albedo = columns(np.stack([scenes.key, scenes.ambient, scenes.albedo], axis=1)[picture])
    length = np.sqrt(dot(surface.ray, surface.ray))
    view = triple(-way / length for way in surface.ray)
    half = triple(towards + back for towards, back in zip(light, view, strict=True))
    floor = (surface.number == _FLOOR).astype(np.float32)
    facing = np.maximum(dot(surface.normal, light), 0) * (_AMBIENT_SHARE + (1 - _AMBIENT_SHARE) * free)
    even = ambient * (0.45 + 0.3 * surface.normal[2] + 0.3 * dot(surface.normal, view))
    matte: Floats = (_FLOOR_ALBEDO * floor + albedo * (1 - floor)) * (even + key * facing)
    shine = np.maximum(dot(surface.normal, half), 0) / np.sqrt(dot(half, half))
    for _ in range(4):
        shine = shine * shine
    matte += _SHINE * key * shine * (facing > 0) * free * (1 - floor)
    return matte
