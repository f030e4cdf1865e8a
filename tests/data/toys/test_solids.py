"""The ray formulas against marching along the rays in small steps, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcaps.data.toys.parts import Kind, Part
from robustcaps.data.toys.solids import Triple, Widths, dot, enter, normal, triple

from .test_parts import inside

KINDS = pytest.mark.parametrize("kind", list(Kind))
RAYS = 64


def rays_and_part(kind: Kind, seed: int) -> tuple[np.ndarray, np.ndarray, Part, Widths]:
    """Rays from a sphere of radius 3 at points near a unit solid with random tapers."""
    rng = np.random.default_rng(seed)
    origin = rng.normal(size=(RAYS, 3))
    origin *= 3 / np.linalg.norm(origin, axis=1, keepdims=True)
    direction = rng.uniform(-1.2, 1.2, (RAYS, 3)) - origin
    taper = tuple(rng.uniform(0, 1.5, 2)) if kind is not Kind.ELLIPSOID else (1.0, 1.0)
    part = Part(kind, np.eye(3), np.zeros(3), (taper[0], taper[0]) if kind is Kind.FRUSTUM else taper)
    (a, b), (c, d) = (((1 + t) / 2, (t - 1) / 2) for t in part.taper)
    as_array = lambda value: np.full(RAYS, value, dtype=np.float32)
    return origin, direction, part, ((as_array(a), as_array(b)), (as_array(c), as_array(d)))


def cast(kind: Kind, origin: np.ndarray, direction: np.ndarray, widths: Widths) -> tuple[np.ndarray, Triple]:
    o, d = triple(origin.T.astype(np.float32)), triple(direction.T.astype(np.float32))
    with np.errstate(divide="ignore", invalid="ignore"):
        step = enter(kind, o, d, widths)
        touched = triple(axis + step * way for axis, way in zip(o, d, strict=True))
    return step, touched


@KINDS
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_rays_enter_where_marching_enters(kind: Kind, seed: int) -> None:
    origin, direction, part, widths = rays_and_part(kind, seed)
    step, _ = cast(kind, origin, direction, widths)
    times = np.linspace(0, 2.5, 2501)
    path = origin[:, None] + times[:, None] * direction[:, None]
    within = inside(part, path.reshape(-1, 3)).reshape(RAYS, -1)
    first = np.where(within.any(axis=1), times[within.argmax(axis=1)], np.inf)
    grazing = within.sum(axis=1) < 3
    np.testing.assert_allclose(step[~grazing], first[~grazing], atol=2e-3)
    assert np.isfinite(step[grazing]).sum() <= 3


@KINDS
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_normals_point_out_of_the_solid_against_the_ray(kind: Kind, seed: int) -> None:
    origin, direction, part, widths = rays_and_part(kind, seed)
    step, touched = cast(kind, origin, direction, widths)
    hit = np.isfinite(step)
    points = triple(axis[hit] for axis in touched)
    (a, b), (c, d) = widths
    out = normal(kind, points, ((a[hit], b[hit]), (c[hit], d[hit])))
    assert (dot(out, triple(direction[hit].T.astype(np.float32))) <= 1e-3).all()
    unit = np.stack(out, axis=1) / np.sqrt(dot(out, out))[:, None]
    assert not inside(part, np.stack(points, axis=1) + 1e-3 * unit).any()


@KINDS
def test_rays_along_an_axis_and_along_a_face_are_finite_or_a_miss(kind: Kind) -> None:
    """Directions with exact zeros: through the middle, beside the solid, and in the plane of a face."""
    origin = np.array([(0.0, 0, 5), (0, 5, 0), (5, 0, 0), (0, 2, 5), (0, 1, 5), (5, 1, 1)])
    direction = np.array([(0.0, 0, -1), (0, -1, 0), (-1, 0, 0), (0, 0, -1), (0, 0, -1), (-1, 0, 0)])
    one, zero = np.ones(6, dtype=np.float32), np.zeros(6, dtype=np.float32)
    step, _ = cast(kind, origin, direction, ((one, zero), (one, zero)))
    assert not np.isnan(step).any()
    assert step[:3].tolist() == [4, 4, 4]
    assert step[3] == np.inf
