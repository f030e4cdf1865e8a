from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.norms import NORMS
from robustcaps.utils.sample_random import Draws

DUALS = {"linf": 1, "l2": 2}
"""Norms whose ascent is the steepest one; the others trade some of it for steps that change more values."""
CONVEX = ("linf", "l2", "l1")


def tensors(seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(7, 2, 3, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NORMS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), radius=st.floats(0.0, 10.0), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_projection_lands_in_the_ball_and_keeps_what_is_inside(name, seed, radius, scale):
    norm, delta = NORMS[name], tensors(seed, scale)
    radii = torch.full((7, 1, 1, 1), radius)
    projected = norm.project(delta, radii)
    assert (norm.size(projected) <= norm.max_size(radii, 24).flatten()).all()
    inside = norm.size(delta) <= radius
    assert torch.equal(projected[inside], delta[inside])
    assert torch.allclose(norm.project(projected, radii), projected, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("name", DUALS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20])
def test_ascent_is_a_unit_step_that_gains_the_dual_norm(name, scale):
    norm, gradient = NORMS[name], tensors(0, scale)
    step = norm.ascent(gradient)
    assert torch.allclose(norm.size(step), torch.ones(7, dtype=torch.float64), rtol=1e-5)
    gain = (step.double() * gradient.double()).flatten(1).sum(1)
    dual = torch.linalg.vector_norm(gradient.double().flatten(1), ord=DUALS[name], dim=1)
    assert torch.allclose(gain, dual, rtol=1e-5)


def test_sparse_ascent_follows_the_largest_gradients():
    gradient = torch.tensor([3.0, -4.0, 1.0, 0.0]).reshape(1, 1, 2, 2)
    assert NORMS["l1"].ascent(gradient).flatten().tolist() == [0.0, -1.0, 0.0, 0.0]
    assert NORMS["l0"].ascent(gradient).flatten().tolist() == [0.75, -1.0, 0.25, 0.0]
    wide = torch.arange(300.0).reshape(1, 1, 15, 20)
    assert NORMS["l1"].ascent(wide).flatten()[-3:].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("name", NORMS)
def test_a_zero_gradient_gives_no_step_and_no_nan(name):
    assert torch.equal(NORMS[name].ascent(torch.zeros(3, 1, 2, 2)), torch.zeros(3, 1, 2, 2))


@pytest.mark.parametrize("name", CONVEX)
def test_random_points_fill_the_ball_uniformly(name):
    points = NORMS[name].random(Draws(0, torch.arange(20_000)), (1, 1, 2), stream=3)
    sizes = NORMS[name].size(points)
    assert sizes.max() <= 1 + 1e-6
    assert abs(float((sizes < 0.5).double().mean()) - 0.25) < 0.02  # the half-size ball has a quarter of the area
    assert points.mean((0, 1, 2)).abs().max() < 0.02


def test_random_points_of_l0_change_so_many_values_evenly():
    radius = torch.full((6000, 1, 1, 1), 3.0)
    points = NORMS["l0"].random_within(radius, Draws(0, torch.arange(6000)), (1, 2, 4), stream=1)
    assert (NORMS["l0"].size(points) == 3).all() and points.abs().max() <= 1
    assert ((points != 0).double().mean(0) - 3 / 8).abs().max() < 0.03


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), radius=st.floats(0.01, 3.0))
def test_projection_onto_the_l1_ball_is_the_nearest_point(seed, radius):
    delta = torch.randn(1, 1, 1, 4, generator=torch.Generator().manual_seed(seed))
    projected = NORMS["l1"].project(delta, torch.full((1, 1, 1, 1), radius)).flatten().double()
    nearest = brute_force_l1(delta.flatten().double(), radius)
    assert torch.allclose(projected, nearest, atol=1e-5)


def brute_force_l1(point: torch.Tensor, radius: float) -> torch.Tensor:
    """The nearest point of the ball: for every support, the point of its face's plane, if it lies in the face."""
    if point.abs().sum() <= radius:
        return point
    candidates = []
    for size in range(1, len(point) + 1):
        for support in map(list, itertools.combinations(range(len(point)), size)):
            face = torch.zeros_like(point)
            face[support] = point[support].abs() - (point[support].abs().sum() - radius) / size
            if (face >= 0).all():
                candidates.append(face * point.sign())
    return min(candidates, key=lambda candidate: float((candidate - point).square().sum()))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 5))
def test_projection_onto_the_l0_ball_is_the_nearest_point(seed, count):
    delta = torch.randn(1, 1, 1, 5, generator=torch.Generator().manual_seed(seed))
    projected = NORMS["l0"].project(delta, torch.full((1, 1, 1, 1), count + 0.4))
    distance = (projected - delta).square().sum()
    masks = [torch.tensor(mask) for mask in itertools.product((0.0, 1.0), repeat=5) if sum(mask) <= count]
    assert torch.isclose(distance, min((delta.flatten() * (1 - mask)).square().sum() for mask in masks))
    assert NORMS["l0"].size(projected) == count


def test_rounding_of_images_is_no_violation_in_l1():
    images = torch.rand(20, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    budget = Budget(0.5, "l1")
    moved = (images + NORMS["l1"].project(0.01 * torch.randn_like(images), budget.radius(images))).clamp(0, 1)
    assert (budget.ball.size(moved - images) <= budget.max_size(images)).all()
