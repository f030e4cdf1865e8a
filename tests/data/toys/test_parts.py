from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robustcaps.data.protocol import CATEGORIES
from robustcaps.data.toys.parts import Kind, Part, box, ellipsoid, mirrored, moved, normalised, rod, slab, wheel
from robustcaps.data.toys.shapes import INSTANCES_PER_CATEGORY, figures


def inside(part: Part, points: np.ndarray) -> Any:
    """The definition of the three solids, in float64."""
    x, y, z = np.linalg.solve(part.matrix, (points - part.centre).T)
    w_x, w_y = ((1 + taper) / 2 + (taper - 1) / 2 * z for taper in part.taper)
    if part.kind is Kind.ELLIPSOID:
        return x * x + y * y + z * z <= 1
    if part.kind is Kind.FRUSTUM:
        return (np.abs(z) <= 1) & (np.hypot(x, y) <= w_x)
    return (np.abs(z) <= 1) & (np.abs(x) <= w_x) & (np.abs(y) <= w_y)


@pytest.mark.parametrize(
    ("part", "within", "without"),
    [
        (ellipsoid((1, 0, 0), (2, 1, 1)), (2.9, 0, 0), (3.1, 0, 0)),
        (ellipsoid((0, 0, 0), (2, 1, 1), pitch=90), (0, 0, 1.9), (1.9, 0, 0)),
        (rod((0, 0, 0), (0, 0, 4), 1.0, 0.5), (0.7, 0, 1), (0.7, 0, 3.9)),
        (rod((0, 0, 0), (4, 0, 0), 1.0, flat=0.5), (2, 0.9, 0), (2, 0, 0.9)),
        (wheel((0, 0, 1), 1.0, 0.2), (0, 0.09, 1.9), (0, 0.11, 1.9)),
        (box((0, 0, 0), (2, 4, 6)), (0.9, 1.9, 2.9), (1.1, 0, 0)),
        (box((0, 0, 0), (2, 2, 2), taper=(0.5, 1)), (0.4, 0, 0.99), (0.6, 0, 0.99)),
        (box((0, 0, 0), (2, 2, 2), lean=1.0), (1.4, 0, 0.99), (-0.9, 0, 0.99)),
        (slab((0, 0, 0), (-1, 2, 0), 1.0, 0.5, 0.1), (-1.2, 1.99, 0.04), (0, 1.99, 0)),
        (moved([box((1, 0, 0), (1, 1, 1))], (0, 0, 5), pitch=90)[0], (0, 0, 6.4), (1.4, 0, 5)),
        (mirrored(box((0, 3, 0), (1, 1, 1)))[1], (0, -3.4, 0), (0, 3, 0)),
    ],
)
def test_parts_are_where_they_should_be(part: Part, within: tuple[float, ...], without: tuple[float, ...]) -> None:
    assert inside(part, np.array([within, without])).tolist() == [True, False]


def test_corners_and_reach_enclose_the_part() -> None:
    rng = np.random.default_rng(0)
    for figure in figures():
        for part in figure.parts:
            points = part.centre + (rng.uniform(-1, 1, (200, 3)) * 1.5) @ part.matrix.T
            points = points[inside(part, points)]
            corners = part.corners()
            assert len(points)
            assert (points <= corners.max(axis=0) + 1e-9).all()
            assert (points >= corners.min(axis=0) - 1e-9).all()
            assert (np.abs(points - part.centre) <= part.reach() + 1e-9).all()


def test_there_are_ten_different_figures_of_each_category() -> None:
    assert len(figures()) == len(CATEGORIES) * INSTANCES_PER_CATEGORY
    assert len({figure.name for figure in figures()}) == len(figures())
    assert len({tuple(part.centre.tobytes() for part in figure.parts) for figure in figures()}) == len(figures())


@pytest.mark.parametrize("figure", figures(), ids=lambda figure: figure.name)
def test_figures_stand_on_the_floor_and_fit_the_sphere(figure) -> None:
    lowest = min(part.centre[2] - part.reach()[2] for part in figure.parts)
    ends = np.concatenate([part.centre + sign * part.matrix.T for part in figure.parts for sign in (-1, 1)])
    assert lowest == pytest.approx(0, abs=1e-9)
    assert np.linalg.norm(ends - (0, 0, figure.height / 2), axis=1).max() <= 1 + 1e-9


def test_normalising_twice_changes_nothing() -> None:
    once = list(figures()[0].parts)
    for before, after in zip(once, normalised(once, 1.0), strict=True):
        np.testing.assert_allclose(after.matrix, before.matrix, atol=1e-12)
        np.testing.assert_allclose(after.centre, before.centre, atol=1e-12)
