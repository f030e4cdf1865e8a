from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.capsules.routing import (
    Update,
    dynamic_routing,
    length_logit,
    squash,
    squashed_length,
    vector_votes,
)
from tests.capsules import reference

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 4), (3, 2, 7, 16), (1, 4, 1, 3), (2, 1, 4, 2)]
"""(n, parents, children, pose)."""


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("update", get_args(Update))
def test_routing_agrees_with_the_loops(shape, iterations, update):
    votes = draw(*shape)
    ours = dynamic_routing(votes, iterations=iterations, update=update)
    expected = np.stack([reference.dynamic_routing(v, iterations, update) for v in votes.numpy()])
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("update", get_args(Update))
def test_gradient_flows_through_every_iteration(update):
    votes = draw(2, 3, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: dynamic_routing(v, iterations=3, update=update), votes)


@pytest.mark.parametrize("shared", [False, True])
def test_votes_are_the_transformed_poses(shared):
    poses, transforms = draw(2, 5, 8), draw(*(() if shared else (5,)), 3, 16, 8, seed=1)
    votes = vector_votes(poses, transforms)
    assert votes.shape == (2, 3, 5, 16)
    for n, j, i in np.ndindex(2, 3, 5):
        matrix = transforms[j] if shared else transforms[i, j]
        torch.testing.assert_close(votes[n, j, i], matrix @ poses[n, i])


def test_one_iteration_is_the_uniform_sum():
    votes = draw(2, 3, 5, 4)
    torch.testing.assert_close(dynamic_routing(votes, iterations=1), votes.mean(dim=2) * 5 / 3)


def test_assignments_are_shared_among_parents_not_children():
    """With one parent every child counts fully, whatever it votes; a softmax over children would average instead."""
    votes = draw(2, 1, 6, 4)
    torch.testing.assert_close(dynamic_routing(votes, iterations=3), votes.sum(dim=2))


def test_routing_strengthens_agreement():
    """Children agree on parent 0 and contradict each other on parent 1: routing moves them to parent 0."""
    agreed = torch.ones(1, 1, 4, 2, dtype=torch.float64)
    mixed = torch.tensor([[1.0, 1], [-1, -1], [1, 1], [-1, -1]], dtype=torch.float64).view(1, 1, 4, 2)
    votes = torch.cat([agreed, mixed], dim=1)
    lengths = [squashed_length(dynamic_routing(votes, iterations=t))[0, 0].item() for t in (1, 2, 3)]
    assert lengths[0] < lengths[1] < lengths[2]


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=16))
def test_squash_keeps_direction_and_bounds_length(values):
    s = torch.tensor(values, dtype=torch.float64)
    v = squash(s)
    assert v.norm() <= 1
    torch.testing.assert_close(v.norm(), squashed_length(s))
    torch.testing.assert_close(v * s.norm(), s * v.norm())


@given(st.floats(1e-3, 1e3))
def test_length_logit_is_the_logit_of_the_length(scale):
    s = scale * draw(16)
    torch.testing.assert_close(length_logit(s), torch.logit(squash(s).norm()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [squash, squashed_length, length_logit])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_capsule_is_finite_with_zero_gradient(function, dtype):
    s = torch.zeros(3, 16, dtype=dtype, requires_grad=True)
    out = function(s)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert s.grad is not None
    assert torch.equal(s.grad, torch.zeros_like(s))


def test_zero_votes_route_with_finite_gradient():
    votes = torch.zeros(2, 3, 4, 8, requires_grad=True)
    length_logit(dynamic_routing(votes, iterations=3)).sum().backward()
    assert votes.grad is not None
    assert torch.isfinite(votes.grad).all()
