from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustcaps.attacks.norms import NORMS
from robustcaps.utils.sample_random import Draws

DUALS = {"linf": 1, "l2": 2}


def tensors(seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(7, 2, 3, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NORMS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), radius=st.floats(0.0, 10.0), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_projection_lands_in_the_ball_and_keeps_what_is_inside(name, seed, radius, scale):
    norm, delta = NORMS[name], tensors(seed, scale)
    radii = torch.full((7, 1, 1, 1), radius)
    projected = norm.project(delta, radii)
    assert (norm.size(projected) <= radius * (1 + 1e-6) + 1e-12).all()
    inside = norm.size(delta) <= radius
    assert torch.equal(projected[inside], delta[inside])
    assert torch.allclose(norm.project(projected, radii), projected, rtol=1e-6)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20])
def test_ascent_is_a_unit_step_that_gains_the_dual_norm(name, scale):
    norm, gradient = NORMS[name], tensors(0, scale)
    step = norm.ascent(gradient)
    assert torch.allclose(norm.size(step), torch.ones(7, dtype=torch.float64), rtol=1e-5)
    gain = (step.double() * gradient.double()).flatten(1).sum(1)
    dual = torch.linalg.vector_norm(gradient.double().flatten(1), ord=DUALS[name], dim=1)
    assert torch.allclose(gain, dual, rtol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_a_zero_gradient_gives_no_step_and_no_nan(name):
    assert torch.equal(NORMS[name].ascent(torch.zeros(3, 1, 2, 2)), torch.zeros(3, 1, 2, 2))


@pytest.mark.parametrize("name", NORMS)
def test_random_points_fill_the_ball_uniformly(name):
    points = NORMS[name].random(Draws(0, torch.arange(20_000)), (1, 1, 2), stream=3)
    sizes = NORMS[name].size(points)
    assert sizes.max() <= 1 + 1e-6
    assert abs(float((sizes < 0.5).double().mean()) - 0.25) < 0.02  # the half-size ball has a quarter of the area
    assert points.mean((0, 1, 2)).abs().max() < 0.02
