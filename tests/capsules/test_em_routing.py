from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustcaps.capsules.routing import (
    Competition,
    Routed,
    Wiring,
    convolution,
    e_step,
    em,
    em_routing,
    everywhere,
    m_step,
    matrix_votes,
    route_votes,
)
from tests.capsules import reference

Grid = tuple[int, int, int]
"""(size, kernel, stride); a kernel of the whole size is a fully connected layer."""
GRIDS: list[Grid] = [(5, 3, 2), (6, 3, 2), (4, 3, 1), (3, 2, 2), (2, 2, 1), (1, 1, 1)]
"""Overlapping windows; with children that no window reaches; dense; disjoint; one window; a single position."""
COMPETITIONS: tuple[Competition, ...] = get_args(Competition)


@dataclass(frozen=True)
class Layer:
    """Random children and parameters of one layer, in float64."""

    wiring: Wiring
    poses: Tensor
    activations: Tensor
    transforms: Tensor
    beta_a: Tensor
    beta_u: Tensor
    inverse_temperature: Tensor
    variance_floor: float = 0.01

    def route(self, competition: Competition = "field", **changes: Tensor) -> Routed:
        named = {**vars(self), **changes}
        return em_routing(**named, competition=competition)


def make_layer(grid: Grid, *, child_types: int = 2, types: int = 3, iterations: int = 3, n: int = 2) -> Layer:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    size, kernel, _ = grid
    return Layer(
        wiring=convolution(*grid),
        poses=draw(n, size * size, child_types, 16),
        activations=draw(n, size * size, child_types).sigmoid(),
        transforms=0.3 * draw(kernel * kernel, child_types, types, 4, 4),
        beta_a=draw(types),
        beta_u=0.2 * draw(types),
        inverse_temperature=torch.linspace(0.1, 0.3, iterations, dtype=torch.float64),
    )


def route_by_loops(
    layer: Layer, grid: Grid, sample: int, competition: str
) -> dict[reference.Parent, reference.Gaussian]:
    _, child_types, types = layer.transforms.shape[:3]
    poses = layer.poses[sample].numpy().reshape(-1, child_types, 4, 4)
    votes = {
        ((q, b), (p, c)): (poses[q, b] @ layer.transforms[s, b, c].numpy()).ravel()
        for q, p, s in reference.convolution_edges(*grid)
        for b in range(child_types)
        for c in range(types)
    }
    activations = {(q, b): float(layer.activations[sample, q, b]) for q, b in np.ndindex(len(poses), child_types)}
    prices = reference.Prices(
        layer.beta_a.numpy(), layer.beta_u.numpy(), layer.inverse_temperature.numpy(), layer.variance_floor
    )
    return reference.em_routing(votes, activations, prices, competition)


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("child_types", "types", "iterations"), [(2, 3, 3), (1, 1, 2), (3, 1, 1), (1, 2, 4)])
def test_routing_agrees_with_the_loops(grid, competition, child_types, types, iterations):
    layer = make_layer(grid, child_types=child_types, types=types, iterations=iterations)
    routed = layer.route(competition)
    for sample in range(2):
        expected = route_by_loops(layer, grid, sample, competition)
        assert len(expected) == routed.logits[sample].numel()
        for (p, c), parent in expected.items():
            np.testing.assert_allclose(routed.poses[sample, p, c].numpy(), parent.mu, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(routed.variance[sample, p, c].numpy(), parent.variance, rtol=1e-6)
            np.testing.assert_allclose(routed.support[sample, p, c].item(), parent.support, rtol=1e-6)
            np.testing.assert_allclose(routed.logits[sample, p, c].item(), parent.logit, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("grid", [(3, 2, 1), (2, 2, 1)])
def test_gradient_flows_through_every_iteration(grid, competition):
    """No detached assignments: autograd agrees with finite differences for every input and parameter."""
    layer = make_layer(grid, child_types=1, types=2, n=1)
    names = ("poses", "activations", "transforms", "beta_a", "beta_u")

    def outputs(*values: Tensor) -> tuple[Tensor, Tensor]:
        routed = layer.route(competition, **dict(zip(names, values, strict=True)))
        return routed.poses, routed.logits

    inputs = [getattr(layer, name).clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


@pytest.mark.parametrize("grid", GRIDS)
def test_every_child_is_shared_out_among_all_its_parents(grid):
    """Corner children have fewer parents, yet each child that some window holds gives exactly 1 in all."""
    layer = make_layer(grid)
    routed, squares = first_m_step(layer)
    R = e_step(squares, routed, layer.wiring)
    total = torch.zeros_like(layer.activations)
    child_types = total.shape[2]
    for q, p, s in reference.convolution_edges(*grid):
        total[:, q] += R[:, p, :, s * child_types : (s + 1) * child_types].sum(dim=1)
    seen = sorted({q for q, _, _ in reference.convolution_edges(*grid)})
    torch.testing.assert_close(total[:, seen], torch.ones_like(total[:, seen]))


def test_position_competition_shares_each_child_out_in_every_window():
    layer = make_layer((5, 3, 2))
    routed, squares = first_m_step(layer)
    shares = e_step(squares, routed, layer.wiring, "position").sum(dim=2)
    torch.testing.assert_close(shares, torch.ones_like(shares))


def first_m_step(layer: Layer) -> tuple[Routed, Tensor]:
    votes = matrix_votes(layer.poses, layer.transforms, layer.wiring)
    r = torch.rand(votes.shape[:4], dtype=votes.dtype, generator=torch.Generator().manual_seed(1))
    return m_step(votes, r, layer.beta_a, layer.beta_u, layer.inverse_temperature[0], layer.variance_floor)


def test_shared_transforms_and_offsets():
    layer = make_layer((2, 2, 1))
    wiring, shared = everywhere(4), layer.transforms[0]
    offsets = torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    votes = matrix_votes(layer.poses, shared, wiring, offsets)
    plain = matrix_votes(layer.poses, shared.expand(4, -1, -1, -1, -1), wiring)
    assert votes.shape == (2, 1, 3, 8, 16)
    torch.testing.assert_close(votes - plain, offsets.repeat_interleave(2, dim=0).expand_as(plain))


def test_activations_matter():
    """Not so where r is renormalised after multiplying by a: then they cancel."""
    layer = make_layer((5, 3, 2))
    fainter, other = layer.route(activations=layer.activations / 2), layer.route(activations=layer.activations.flip(2))
    routed = layer.route()
    assert not torch.allclose(routed.logits, fainter.logits, rtol=0.01)
    assert not torch.allclose(routed.poses, other.poses, rtol=0.01)


@pytest.mark.parametrize(("spread", "cost"), [(1.0, 0.0), (np.e, 16.0), (np.e**2, 32.0)])
def test_cost_is_log_sigma_not_log_variance(spread, cost):
    """Two votes at +-spread with weight 1/2 each: sigma = spread, S = 1, cost = 16 log sigma."""
    votes = torch.tensor([-spread, spread], dtype=torch.float64).view(1, 1, 1, 2, 1).expand(1, 1, 1, 2, 16)
    zero, half = torch.zeros(1, dtype=torch.float64), torch.full((1, 1, 1, 2), 0.5, dtype=torch.float64)
    routed, _ = m_step(votes, half, zero, zero, torch.tensor(1.0), 1e-12)
    assert routed.logits.item() == pytest.approx(-cost, abs=1e-6)


def test_assignments_follow_the_normal_density():
    """log R_1 - log R_2 = log a_1/a_2 + sum_h log N_1(V_h)/N_2(V_h), with 1/(2 sigma^2) and 1/sigma."""
    mu, variance = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])
    logits, vote = torch.tensor([0.3, -0.4]), torch.tensor(0.7)
    parents = Routed(
        poses=mu.view(1, 1, 2, 1).expand(1, 1, 2, 16),
        logits=logits.view(1, 1, 2),
        variance=variance.view(1, 1, 2, 1).expand(1, 1, 2, 16),
        support=torch.ones(1, 1, 2),
    )
    squares = (vote - mu).square().view(1, 1, 2, 1, 1).expand(1, 1, 2, 1, 16)
    R = e_step(squares, parents, everywhere(1)).flatten()
    expected = logits.sigmoid().log() + 16 * torch.distributions.Normal(mu, variance.sqrt()).log_prob(vote)
    torch.testing.assert_close(R, expected.softmax(dim=0))


def test_vanishing_equal_variances_give_hard_k_means():
    means = torch.tensor([[0.0] * 16, [1.0] * 16, [3.0] * 16])
    votes = torch.tensor([-0.5, 0.4, 0.6, 1.9, 2.1, 9.0]).view(6, 1).expand(6, 16)
    squares = (votes - means[:, None]).square().view(1, 1, 3, 6, 16)
    parents = Routed(
        poses=means.view(1, 1, 3, 16),
        logits=torch.zeros(1, 1, 3),
        variance=torch.full((1, 1, 3, 16), 1e-6),
        support=torch.ones(1, 1, 3),
    )
    R = e_step(squares, parents, everywhere(6))[0, 0]
    nearest = torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.equal(R, torch.nn.functional.one_hot(nearest, 3).T.float())


@pytest.mark.parametrize(("mean", "deviation"), [(10.0, 0.01), (30.0, 0.01), (100.0, 0.05)])
def test_agreement_far_from_zero_survives_float32(mean, deviation):
    """E[V^2] - mu^2 would lose all digits here."""
    generator = torch.Generator().manual_seed(0)
    votes = (mean + deviation * torch.randn(1, 1, 2, 20, 16, generator=generator)).float()
    activations, beta = torch.rand(1, 20, 1, generator=generator), torch.full((2,), 4.0)

    def activation(dtype: torch.dtype) -> Tensor:
        prices = {"beta_a": beta.to(dtype), "beta_u": beta.to(dtype)}
        scales = torch.full((3,), 0.05, dtype=dtype)
        return route_votes(
            votes.to(dtype),
            activations.to(dtype),
            everywhere(20),
            **prices,
            inverse_temperature=scales,
            variance_floor=1e-8,
        ).activations.double()

    torch.testing.assert_close(activation(torch.float32), activation(torch.float64), rtol=0, atol=0.01)


DEGENERATE = {
    "zero activations": lambda votes, activations: (votes, torch.zeros_like(activations)),
    "one active child": lambda votes, activations: (votes, activations * torch.eye(activations.shape[1])[0][:, None]),
    "identical votes": lambda votes, activations: (torch.ones_like(votes), activations),
    "huge votes": lambda votes, activations: (1e4 * votes, activations),
    "one parent": lambda votes, activations: (votes[:, :, :1], activations),
    "one child": lambda votes, activations: (votes[:, :, :, :1], activations[:, :1]),
}


@pytest.mark.parametrize("floor", [0.1, 1e-8])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_input_is_finite_with_finite_gradient(case, floor):
    generator = torch.Generator().manual_seed(0)
    votes, activations = torch.randn(2, 1, 3, 5, 16, generator=generator), torch.rand(2, 5, 1, generator=generator)
    votes, activations = (x.clone().requires_grad_() for x in DEGENERATE[case](votes, activations))
    beta = torch.zeros(votes.shape[2])
    routed = route_votes(
        votes,
        activations,
        everywhere(activations.shape[1]),
        beta_a=beta,
        beta_u=beta,
        inverse_temperature=torch.ones(3),
        variance_floor=floor,
    )
    (routed.poses.sum() + routed.activations.sum()).backward()
    for tensor in (routed.poses, routed.logits, votes.grad, activations.grad):
        assert tensor is not None
        assert torch.isfinite(tensor).all()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), shift=st.floats(-5, 5))
def test_moving_all_votes_moves_the_poses_and_nothing_else(seed, shift):
    generator = torch.Generator().manual_seed(seed)
    votes = torch.randn(1, 1, 3, 6, 16, dtype=torch.float64, generator=generator)
    activations = 0.1 + torch.rand(1, 6, 1, dtype=torch.float64, generator=generator)
    beta, scales = torch.ones(3, dtype=torch.float64), torch.full((3,), 0.1, dtype=torch.float64)

    def route(moved: Tensor) -> Routed:
        return route_votes(
            moved,
            activations,
            everywhere(6),
            beta_a=beta,
            beta_u=beta,
            inverse_temperature=scales,
            variance_floor=0.01,
        )

    here, there = route(votes), route(votes + shift)
    torch.testing.assert_close(there.poses, here.poses + shift, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there.logits, here.logits, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(4)), st.permutations(range(3)))
def test_the_order_of_child_and_parent_types_is_only_a_name(children, parents):
    layer = make_layer((4, 3, 1), child_types=4)
    renamed = layer.route(
        poses=layer.poses[:, :, children],
        activations=layer.activations[:, :, children],
        transforms=layer.transforms[:, children][:, :, parents],
        beta_a=layer.beta_a[parents],
        beta_u=layer.beta_u[parents],
    )
    routed = layer.route()
    torch.testing.assert_close(renamed.poses, routed.poses[:, :, parents])
    torch.testing.assert_close(renamed.logits, routed.logits[:, :, parents])


@pytest.mark.parametrize("n", [0, 1, 5])
def test_routing_in_parts_changes_nothing(n, monkeypatch):
    layer = make_layer((4, 3, 1), n=n)
    whole = layer.route()
    monkeypatch.setattr(em, "CPU_VOTES", 1)
    parts = layer.route()
    assert whole.poses.shape == (n, 4, 3, 16)
    torch.testing.assert_close(parts.poses, whole.poses)
    torch.testing.assert_close(parts.logits, whole.logits)


@pytest.mark.parametrize("grid", GRIDS)
def test_wiring_lists_each_edge_once_from_both_sides(grid):
    wiring = convolution(*grid)
    edges = reference.convolution_edges(*grid)
    assert {(int(wiring.windows[p, s]), p, s) for p, s in np.ndindex(*wiring.windows.shape)} == set(edges)
    for q, row in enumerate(wiring.rivals.tolist()):
        slots = [slot for slot in row if slot < wiring.windows.numel()]
        assert slots == [p * wiring.windows.shape[1] + s for child, p, s in sorted(edges) if child == q]
        assert int(wiring.copies[q]) == len(slots)
