from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
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
UPDATES: tuple[Update, ...] = get_args(Update)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("update", UPDATES)
def test_routing_agrees_with_the_loops(shape, iterations, update):
    votes = draw(*shape)
    ours = dynamic_routing(votes, iterations=iterations, update=update)
    expected = np.stack([reference.dynamic_routing(v, iterations, update) for v in votes.numpy()])
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-10)


@settings(deadline=None, max_examples=50)
@given(
    n=st.integers(1, 3),
    parents=st.integers(1, 4),
    children=st.integers(1, 5),
    poses=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    shared=st.booleans(),
    iterations=st.integers(1, 4),
    update=st.sampled_from(UPDATES),
    seed=st.integers(0, 2**31),
)
def test_any_layer_agrees_with_the_loops(n, parents, children, poses, shared, iterations, update, seed):
    """Votes and routing, forward; and backward, along a random direction in the poses and in the transforms."""
    pairs = (parents,) if shared else (children, parents)
    u, W = draw(n, children, poses[0], seed=seed), draw(*pairs, poses[1], poses[0], seed=seed + 1)
    readout = draw(n, parents, poses[1], seed=seed + 2)
    du, dW = draw(*u.shape, seed=seed + 3), draw(*W.shape, seed=seed + 4)

    def by_loops(h: float, k: float) -> torch.Tensor:
        moved, turned = (u + h * du).numpy(), (W + k * dW).numpy()
        votes = [reference.vector_votes(sample, turned) for sample in moved]
        return torch.tensor(np.stack([reference.dynamic_routing(v, iterations, update) for v in votes]))

    leaves = u.clone().requires_grad_(), W.clone().requires_grad_()
    s = dynamic_routing(vector_votes(*leaves), iterations=iterations, update=update)
    torch.testing.assert_close(s, by_loops(0, 0), rtol=1e-9, atol=1e-10)
    by_u, by_W = torch.autograd.grad((readout * s).sum(), leaves)
    slopes = [
        reference.slope(lambda h: float((readout * by_loops(h, 0)).sum())),
        reference.slope(lambda h: float((readout * by_loops(0, h)).sum())),
    ]
    assert [(by_u * du).sum().item(), (by_W * dW).sum().item()] == pytest.approx(slopes, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("update", UPDATES)
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


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("parents", [1, 3])
def test_one_iteration_is_the_plain_mean_of_the_votes(parents, update):
    """s_j = sum_i u_hat_{j|i} / parents: the mean over the children, times children / parents."""
    votes = draw(2, parents, 5, 4)
    s = dynamic_routing(votes, iterations=1, update=update)
    torch.testing.assert_close(s, votes.sum(dim=2) / parents)
    torch.testing.assert_close(s * parents / 5, votes.mean(dim=2))


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


DEGENERATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "identical votes": torch.ones_like,
    "one parent": lambda votes: votes[:, :1],
    "one child": lambda votes: votes[:, :, :1],
    "one child, one parent": lambda votes: votes[:, :1, :1],
    "zero votes": torch.zeros_like,
    "votes times 1e-6": lambda votes: 1e-6 * votes,
    "votes times 1e-3": lambda votes: 1e-3 * votes,
    "votes times 1e3": lambda votes: 1e3 * votes,
    "votes times 1e6": lambda votes: 1e6 * votes,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_votes_are_finite_with_finite_gradient(case, iterations, update, dtype):
    votes = DEGENERATE[case](draw(2, 3, 4, 8)).to(dtype).requires_grad_()
    s = dynamic_routing(votes, iterations=iterations, update=update)
    found = {"s": s, "v": squash(s), "length": squashed_length(s), "logit": length_logit(s)}
    for name, output in found.items():
        (gradient,) = torch.autograd.grad(output.sum(), votes, retain_graph=True)
        assert torch.isfinite(output).all(), name
        assert torch.isfinite(gradient).all(), name


def test_overwhelming_agreement_is_a_hard_assignment():
    """As the votes grow, each child goes to the parent that agrees with it most, as in k-means."""
    votes = 1e5 * draw(2, 3, 6, 8)
    v = squash(votes.sum(dim=2) / 3)
    nearest = torch.einsum("njih,njh->nji", votes, v).argmax(dim=1)
    hard = torch.nn.functional.one_hot(nearest, 3).double().permute(0, 2, 1)
    s = dynamic_routing(votes, iterations=2)
    torch.testing.assert_close(s, torch.einsum("nji,njih->njh", hard, votes))
