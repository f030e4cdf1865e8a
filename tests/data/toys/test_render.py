from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pandas as pd
import pytest

from robustcaps.data.protocol import CATEGORIES, Eye
from robustcaps.data.toys.factors import sample_factors
from robustcaps.data.toys.parts import Kind
from robustcaps.data.toys.render import _FLOOR, _find_surfaces, _parts_in, _shadow, render
from robustcaps.data.toys.scene import BASELINE, DISTANCE, Scenes, scenes_of
from robustcaps.data.toys.shapes import figures
from robustcaps.data.toys.solids import enter, triple
from robustcaps.data.toys.tiles import _FOCAL, picture_from

COLUMNS = ["category", "instance", "elevation", "azimuth", "lighting"]


def all_figures(elevation: int = 40, azimuth: int = 40, lighting: int = 0, eye: Eye = "left") -> Scenes:
    rows = [(name, instance, elevation, azimuth, lighting) for name in CATEGORIES for instance in range(10)]
    return scenes_of(pd.DataFrame(rows, columns=COLUMNS), eye)


def seen_parts(scenes: Scenes) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return picture_from(_find_surfaces(scenes, _parts_in(scenes)).number)


def test_the_eyes_stand_apart_and_look_at_the_figure() -> None:
    factors = sample_factors("train", np.arange(200))
    left, right = scenes_of(factors, "left"), scenes_of(factors, "right")
    heights = np.array([figures()[figure].height for figure in left.figure])
    middle = np.stack([0 * heights, 0 * heights, heights / 2], axis=1)
    np.testing.assert_allclose(np.linalg.norm(right.eye - left.eye, axis=1), BASELINE)
    for scenes in (left, right):
        towards = middle - scenes.eye
        np.testing.assert_allclose(np.linalg.norm(towards, axis=1), np.hypot(DISTANCE, BASELINE / 2))
        np.testing.assert_allclose(
            scenes.axes @ scenes.axes.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (200, 3, 3)), atol=1e-12
        )
        np.testing.assert_allclose(np.einsum("ni,ni->n", scenes.axes[:, 0], towards), np.linalg.norm(towards, axis=1))
        assert (scenes.axes[:, 2, 2] < 0).all(), "down points down"
    elevation = np.degrees(np.arcsin(((left.eye + right.eye) / 2 - middle)[:, 2] / DISTANCE))
    np.testing.assert_allclose(elevation, factors["elevation"])


def test_every_figure_fills_the_centre_and_nothing_but_the_centre() -> None:
    """The models see the central 64 of the 96 pixels."""
    for elevation, azimuth, eye in itertools.product((30, 70), (0, 60), ("left", "right")):
        figure = seen_parts(all_figures(elevation, azimuth, eye=eye)) != _FLOOR  # type: ignore[arg-type]
        assert not np.delete(figure, np.s_[16:80], axis=1).any()
        assert not np.delete(figure, np.s_[16:80], axis=2).any()
        assert (figure.sum(axis=(1, 2)) > 200).all()


def test_pictures_do_not_depend_on_their_company() -> None:
    scenes = all_figures()
    together = render(scenes)
    assert together.shape == (50, 96, 96)
    assert together.dtype == np.uint8
    for row in (0, 17, 49):
        np.testing.assert_array_equal(render(scenes[row : row + 1])[0], together[row])


def test_figures_views_lights_and_eyes_all_change_the_picture() -> None:
    views = [all_figures(), all_figures(45), all_figures(azimuth=60), all_figures(lighting=1), all_figures(eye="right")]
    pictures = np.concatenate([render(scenes) for scenes in views])
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)


def test_the_figure_shifts_between_the_eyes_as_its_distance_says() -> None:
    """A point nearer than the middle moves to the left in the right eye's picture."""
    left, right = all_figures(30, eye="left"), all_figures(30, eye="right")
    ahead = ((left.eye + right.eye) / 2 - [0, 0, 0.5]) / DISTANCE
    columns = []
    for scenes in (left, right):
        forward, sideways, _ = np.einsum("nij,nj->in", scenes.axes, ahead - scenes.eye)
        columns.append(sideways / forward * _FOCAL)
    assert (columns[1] < columns[0] - 1).all()


def test_tiles_miss_nothing() -> None:
    """What tiles find equals a search of every part in every pixel."""
    scenes = all_figures(35, 100)[::7]
    parts = _parts_in(scenes)
    with np.errstate(divide="ignore", invalid="ignore"):
        surface = _find_surfaces(scenes, parts)
        found, free = picture_from(surface.number), picture_from(_shadow(scenes, parts, surface))
        points = np.stack([picture_from(axis) for axis in surface.point], axis=-1)
        across, down = np.meshgrid(np.arange(96) + 0.5 - 48, np.arange(96) + 0.5 - 48)
        for picture in range(len(scenes)):
            forward, right, below = scenes.axes[picture]
            ray = forward + (across[..., None] * right + down[..., None] * below) / _FOCAL
            expected = np.full((96, 96), _FLOOR)
            nearest = np.full((96, 96), np.inf)
            hidden = np.zeros((96, 96), dtype=bool)
            for same_kind in parts:
                for row in np.flatnonzero(same_kind.picture == picture).tolist():
                    step = hits(same_kind, row, scenes.eye[picture], ray)
                    expected = np.where(step < nearest, same_kind.number[row], expected)
                    nearest = np.minimum(step, nearest)
                    shade = hits(same_kind, row, points[picture], scenes.light[picture])
                    hidden |= (shade > 0) & np.isfinite(shade) & (found[picture] != same_kind.number[row])
            assert (expected != found[picture]).mean() < 1e-3
            assert (hidden != (free[picture] == 0)).mean() < 3e-3


def hits(parts, row: int, origin: np.ndarray, ray: np.ndarray) -> np.ndarray:
    """Where rays enter one part, by the same formulas in float64."""
    inverse = parts.inverse[row]
    o, d = np.broadcast_arrays((origin - parts.centre[row]) @ inverse.T, ray @ inverse.T)
    (a, b), (c, d_) = parts.widths[row].astype(np.float64)
    widths = ((np.array(a), np.array(b)), (np.array(c), np.array(d_)))
    return enter(Kind(parts.kind), triple(np.moveaxis(o, -1, 0)), triple(np.moveaxis(d, -1, 0)), widths)


@pytest.mark.parametrize(("lighting", "side"), [(0, 1), (1, -1)])
def test_the_shadow_falls_away_from_the_light(lighting: int, side: int) -> None:
    """Light from the viewer's left throws the shadow to the right, and the reverse."""
    scenes = all_figures(lighting=lighting)
    parts = _parts_in(scenes)
    with np.errstate(divide="ignore", invalid="ignore"):
        surface = _find_surfaces(scenes, parts)
        shaded = picture_from((_shadow(scenes, parts, surface) == 0) & (surface.number == _FLOOR))
    figure = picture_from(surface.number != _FLOOR)
    middle = [np.average(np.arange(96), weights=mask.sum(axis=(0, 1))) for mask in (figure, shaded)]
    assert side * (middle[1] - middle[0]) > 3


def test_the_drawings_never_change() -> None:
    """Models are trained on these pixels: whoever changes what is drawn must train them anew."""
    digest = hashlib.sha256(render(all_figures()).tobytes() + render(all_figures(60, 200, 4, "right")).tobytes())
    assert digest.hexdigest()[:16] == "08971552c1693612"
