from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustcaps.capsules.routing import (
    Routed,
    e_step,
    em,
    fully_connected,
    m_step,
    matrix_votes,
    parent_logits,
    route_votes,
)
from tests.capsules import reference
from tests.capsules.em_layers import ACTIVATIONS, COMPETITIONS, GRIDS, OUTPUTS, STARTS, Layer, make_layer


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Any layer that loops can route in little time."""
    size = draw(st.integers(1, 3))
    schedule = draw(st.lists(st.floats(0.02, 0.2), min_size=1, max_size=4))
    return make_layer(
        grid=(size, draw(st.integers(1, size)), draw(st.integers(1, 2))),
        n=draw(st.integers(1, 2)),
        child_types=draw(st.integers(1, 2)),
        types=draw(st.integers(1, 3)),
        side=draw(st.sampled_from([4, 16])),
        shared=draw(st.booleans()),
        offsets=draw(st.booleans()),
        betas=draw(st.sampled_from(["type", "shared"])),
        seed=draw(st.integers(0, 2**31)),
        inverse_temperature=torch.tensor(schedule, dtype=torch.float64),
        variance_floor=draw(st.sampled_from([0.3, 1.0])),
        competition=draw(st.sampled_from(COMPETITIONS)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        mean_momentum=draw(st.sampled_from([0.0, 0.1, 0.5])),
        start=draw(st.sampled_from(STARTS)),
    )


def assert_outputs_agree(layer: Layer, tolerance: float) -> None:
    routed, expected = layer.route(), layer.route_by_loops()
    for name in OUTPUTS:
        torch.testing.assert_close(getattr(routed, name), getattr(expected, name), rtol=tolerance, atol=tolerance / 10)


@dataclass(frozen=True)
class Readout:
    """One number from what routing has found: its poses and logits, weighted."""

    poses: Tensor
    logits: Tensor

    def __call__(self, routed: Routed) -> Tensor:
        return (self.poses * routed.poses).sum() + (self.logits * routed.logits).sum()

    def slope_by_loops(self, layer: Layer, name: str, direction: Tensor) -> float:
        """How it changes by the loops where one input moves."""
        start = getattr(layer, name)

        def value(h: float) -> float:
            return float(self(replace(layer, **{name: start + h * direction}).route_by_loops()))

        return reference.slope(value)


def assert_slopes_agree(layer: Layer, tolerance: float) -> None:
    """Along a random direction in each input, autograd gives the slope of the loops."""
    generator = torch.Generator().manual_seed(1)

    def draw_like(x: Tensor) -> Tensor:
        return torch.randn(x.shape, dtype=x.dtype, generator=generator)

    leaves: dict[str, Any] = {name: x.clone().requires_grad_() for name, x in layer.inputs().items()}
    routed = replace(layer, **leaves).route()
    readout = Readout(draw_like(routed.poses), draw_like(routed.logits))
    gradients = torch.autograd.grad(readout(routed), list(leaves.values()), materialize_grads=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        direction = draw_like(gradient)
        expected = readout.slope_by_loops(layer, name, direction)
        assert (gradient * direction).sum().item() == pytest.approx(expected, rel=tolerance, abs=tolerance), name


@settings(deadline=None, max_examples=40)
@given(layers())
def test_any_layer_agrees_with_the_loops(layer):
    """Forward and backward, where every parent has got something: the formulas divide by it.

    The likelihood of outliers is a constant in gradients, so the competition `type` has other slopes.
    """
    assume(layer.route().support.min() > 1e-3)
    assert_outputs_agree(layer, tolerance=1e-7)
    if layer.competition != "type":
        assert_slopes_agree(layer, tolerance=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("child_types", "types", "iterations"), [(2, 3, 3), (1, 1, 2), (3, 1, 1), (1, 2, 4)])
def test_routing_agrees_with_the_loops(grid, child_types, types, iterations, competition, activation):
    sizes = {"child_types": child_types, "types": types, "iterations": iterations}
    assert_outputs_agree(make_layer(grid, **sizes, competition=competition, activation=activation), tolerance=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("mean_momentum", [0.0, 0.3])
@pytest.mark.parametrize("grid", [(3, 2, 1), (2, 2, 1)])
def test_gradient_flows_through_every_iteration(grid, mean_momentum, competition, activation, monkeypatch):
    """No detached assignments: autograd agrees with finite differences for every input and parameter.

    Only the likelihood of outliers is a constant in gradients; here it is negligible.
    """
    monkeypatch.setattr(em, "OUTLIER_EPS", 1e-30)
    rules = {"competition": competition, "activation": activation, "mean_momentum": mean_momentum}
    layer = make_layer(grid, child_types=1, types=2, n=1, offsets=True, **rules)
    inputs = {name: x.clone().requires_grad_() for name, x in layer.inputs().items()}

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        routed = replace(layer, **dict(zip(inputs, values, strict=True))).route()
        return tuple(getattr(routed, name) for name in OUTPUTS)

    assert torch.autograd.gradcheck(outputs, tuple(inputs.values()), fast_mode=True)


@pytest.mark.parametrize("grid", GRIDS)
def test_every_child_is_shared_out_among_all_its_parents(grid):
    """Corner children have fewer parents, yet each child that some window holds gives exactly 1 in all."""
    layer = make_layer(grid)
    child_types = layer.poses.shape[2]
    seen = sorted({q for q, _, _ in reference.convolution_edges(*grid)})
    for step in layer.steps():
        total = torch.zeros_like(layer.activations)
        for q, p, s in reference.convolution_edges(*grid):
            total[:, q] += step.assignments[:, p, :, s * child_types : (s + 1) * child_types].sum(dim=1)
        torch.testing.assert_close(total[:, seen], torch.ones_like(total[:, seen]))


def test_position_competition_shares_each_child_out_in_every_window():
    for step in make_layer((5, 3, 2), competition="position").steps():
        shares = step.assignments.sum(dim=2)
        torch.testing.assert_close(shares, torch.ones_like(shares))


@pytest.mark.parametrize("faint", [1.0, 1e-12, 0.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("competition", COMPETITIONS)
def test_the_last_step_is_what_routing_finds(competition, activation, faint):
    """Parents that get nothing, or hardly anything, included."""
    layer = make_layer((4, 3, 1), iterations=4, offsets=True, competition=competition, activation=activation)
    layer = replace(layer, activations=faint * layer.activations)
    steps, routed = layer.steps(), layer.route()
    assert len(steps) == 4
    for name in OUTPUTS:
        torch.testing.assert_close(getattr(steps[-1].parents, name), getattr(routed, name))


@pytest.mark.parametrize("offsets", [False, True])
def test_a_parent_without_children_is_at_zero(offsets):
    layer = make_layer((4, 3, 1), offsets=offsets)
    poses = replace(layer, activations=0 * layer.activations).route().poses
    torch.testing.assert_close(poses, torch.zeros_like(poses))


def test_shared_transforms_and_offsets():
    layer = make_layer((2, 2, 1), shared=True, offsets=True)
    assert layer.offsets is not None
    votes = matrix_votes(layer.poses, layer.transforms, fully_connected(4), layer.offsets)
    plain = matrix_votes(layer.poses, layer.transforms.expand(4, -1, -1, -1, -1), fully_connected(4))
    assert votes.shape == (2, 1, 3, 8, 16)
    torch.testing.assert_close(votes - plain, layer.offsets.repeat_interleave(2, dim=0).expand_as(plain))


@pytest.mark.parametrize("shared", [False, True])
def test_a_matrix_vote_is_a_vector_vote_with_one_block_per_row(shared):
    layer = make_layer((3, 2, 1), shared=shared)
    blocks = torch.kron(torch.eye(4, dtype=torch.float64), layer.transforms)
    assert blocks.shape[-2:] == (16, 16)
    as_vectors = matrix_votes(layer.poses, blocks, layer.wiring)
    torch.testing.assert_close(as_vectors, matrix_votes(layer.poses, layer.transforms, layer.wiring))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_matter(activation):
    """Not so where r is renormalised after multiplying by a: then they cancel. Only the paper's cost knows the sum."""
    layer = make_layer((5, 3, 2), activation=activation)
    routed, fainter = layer.route(), replace(layer, activations=layer.activations / 2).route()
    other = replace(layer, activations=layer.activations.flip(2)).route()
    assert not torch.allclose(routed.poses, other.poses, rtol=0.01)
    assert not torch.allclose(routed.logits, other.logits, rtol=0.01)
    assert torch.allclose(routed.logits, fainter.logits, rtol=0.01) == (activation != "cost")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("spread", [1.0, np.e, np.e**2])
def test_logits_of_two_known_parents(spread, activation):
    """Votes at +-spread with weights 3/2 and 1/2 each: sigma = spread, S = 3 and 1; log sigma, not log sigma^2."""
    votes = torch.tensor([-spread, spread], dtype=torch.float64).view(1, 1, 1, 2, 1).expand(1, 1, 2, 2, 16)
    r = torch.tensor([[1.5, 1.5], [0.5, 0.5]], dtype=torch.float64).view(1, 1, 2, 2)
    beta_a, beta_u = torch.tensor([2.0, -1.0]), torch.tensor([0.25, 0.5])
    _, variance, support, _ = m_step(votes, r, 1e-12)
    logits = parent_logits(variance, support, beta_a, beta_u, torch.tensor(0.1), activation).flatten().tolist()
    log_sigma = np.log(spread)
    expected = {
        "cost": [0.1 * (2 - 3 * 16 * (0.25 + log_sigma)), 0.1 * (-1 - 16 * (0.5 + log_sigma))],
        "mean-cost": [0.1 * (2 - 16 * (0.25 + log_sigma)), 0.1 * (-1 - 16 * (0.5 + log_sigma))],
        "mixture": [np.log(0.75 / (0.25 + em.SHARE_EPS)), np.log(0.25 / (0.75 + em.SHARE_EPS))],
    }
    assert logits == pytest.approx(expected[activation], abs=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_mixture_activations_are_shares_of_the_layer(grid):
    routed = make_layer(grid, activation="mixture").route()
    shares = routed.support / routed.support.sum(dim=(1, 2), keepdim=True)
    torch.testing.assert_close(routed.activations, shares / (1 + em.SHARE_EPS))


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
    R = e_step(squares, parents, fully_connected(1)).flatten()
    expected = logits.sigmoid().log() + 16 * torch.distributions.Normal(mu, variance.sqrt()).log_prob(vote)
    torch.testing.assert_close(R, expected.softmax(dim=0))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), parents=st.integers(1, 4), children=st.integers(1, 8))
def test_vanishing_equal_variances_give_a_step_of_k_means(seed, parents, children):
    """Each child goes to its nearest parent alone, and each parent to the mean of its own; less and less so above 0."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(parents, 16, dtype=torch.float64, generator=generator)
    votes = torch.randn(children, 16, dtype=torch.float64, generator=generator)
    nearest = torch.cdist(votes, means).argmin(dim=1)
    squares = (votes - means[:, None]).square()[None, None]

    def assignments(variance: float) -> Tensor:
        gaussians = Routed(
            means[None, None], torch.zeros(1, 1, parents), squares[..., 0, :] * 0 + variance, means[:, 0]
        )
        return e_step(squares, gaussians, fully_connected(children))

    hard = torch.nn.functional.one_hot(nearest, parents).T.double()
    errors = [(assignments(variance)[0, 0] - hard).abs().max().item() for variance in (1.0, 1e-2, 1e-9)]
    assert errors[2] <= errors[1] <= errors[0]
    assert errors[2] < 1e-9
    mu, *_ = m_step(votes.expand(1, 1, parents, -1, -1), assignments(1e-9), variance_floor=1e-9)
    for j in nearest.unique():
        torch.testing.assert_close(mu[0, 0, j], votes[nearest == j].mean(dim=0))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("grid", "competition"), [((3, 3, 1), "field"), ((3, 3, 1), "position"), ((3, 2, 1), "position")]
)
def test_one_iteration_is_the_mean_of_the_votes(grid, competition, activation):
    """Weighted by the children's activations; where all are equal, the plain mean."""
    layer = make_layer(grid, iterations=1, competition=competition, activation=activation)
    votes = matrix_votes(layer.poses, layer.transforms, layer.wiring)
    weights = layer.activations[:, layer.wiring.windows].flatten(2)[:, :, None, :, None]
    torch.testing.assert_close(layer.route().poses, (weights * votes).sum(dim=3) / weights.sum(dim=3))
    equal = replace(layer, activations=torch.full_like(layer.activations, 0.3)).route()
    torch.testing.assert_close(equal.poses, votes.mean(dim=3))


def test_one_iteration_gives_a_child_with_fewer_parents_a_greater_say():
    """Its activation is shared out among fewer: on a 3x3 grid with 2x2 windows, corners lie in 1, the centre in 4."""
    layer = make_layer((3, 2, 1), iterations=1, child_types=1)
    votes = matrix_votes(layer.poses, layer.transforms, layer.wiring)[:, 0]
    r = layer.activations[:, [0, 1, 3, 4], 0] / torch.tensor([1, 2, 2, 4])
    expected = torch.einsum("ni,ncih->nch", r, votes) / r.sum(dim=1)[:, None, None]
    torch.testing.assert_close(layer.route().poses[:, 0], expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("mean", "deviation"), [(10.0, 0.01), (30.0, 0.01), (100.0, 0.05)])
def test_agreement_far_from_zero_survives_float32(mean, deviation, activation):
    """E[V^2] - mu^2 would lose all digits here."""
    generator = torch.Generator().manual_seed(0)
    votes = (mean + deviation * torch.randn(1, 1, 2, 20, 16, generator=generator)).float()
    activations, beta = torch.rand(1, 20, 1, generator=generator), torch.full((2,), 4.0)

    def activation_in(dtype: torch.dtype) -> Tensor:
        prices = {"beta_a": beta.to(dtype), "beta_u": beta.to(dtype)}
        scales = torch.full((3,), 0.05, dtype=dtype)
        rules = {"inverse_temperature": scales, "variance_floor": 1e-8, "activation": activation}
        return route_votes(votes.to(dtype), activations.to(dtype), fully_connected(20), **prices, **rules).activations

    close = {"rtol": 0, "atol": 0.01, "check_dtype": False}
    torch.testing.assert_close(activation_in(torch.float32), activation_in(torch.float64), **close)


def scaled(factor: float) -> Callable[[Layer], Layer]:
    return lambda layer: replace(layer, poses=factor * layer.poses)


DEGENERATE: dict[str, Callable[[Layer], Layer]] = {
    "zero activations": lambda layer: replace(layer, activations=0 * layer.activations),
    "one active child": lambda layer: replace(layer, activations=layer.activations * torch.eye(9)[0][:, None]),
    "identical votes": lambda layer: replace(
        layer, poses=torch.ones_like(layer.poses), transforms=torch.ones_like(layer.transforms)
    ),
    "one parent": lambda layer: make_layer((3, 3, 1), types=1),
    "one child": lambda layer: make_layer((1, 1, 1), child_types=1),
    "one child, one parent": lambda layer: make_layer((1, 1, 1), child_types=1, types=1),
    **{f"poses times {factor:g}": scaled(factor) for factor in (0.0, 1e-6, 1e-3, 1e3, 1e6)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("floor", [0.1, 1e-8])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_input_is_finite_with_finite_gradient(case, competition, activation, floor, dtype):
    layer = DEGENERATE[case](make_layer((3, 2, 1)))
    inputs = {name: x.to(dtype).requires_grad_() for name, x in layer.inputs().items()}
    rules = {"competition": competition, "activation": activation, "variance_floor": floor}
    routed = replace(layer, **inputs, **rules).route()
    found = {name: getattr(routed, name) for name in (*OUTPUTS, "activations")}
    loss = routed.poses.sum() + routed.activations.sum() + routed.logits.sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()), materialize_grads=True)
    for name, tensor in (*found.items(), *zip(inputs, gradients, strict=True)):
        assert torch.isfinite(tensor).all(), name


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), shift=st.floats(-5, 5), activation=st.sampled_from(ACTIVATIONS))
def test_moving_all_votes_moves_the_poses_and_nothing_else(seed, shift, activation):
    layer = make_layer((3, 2, 1), seed=seed, activation=activation)
    here, there = layer.route(), replace(layer, offsets=torch.full((4, 16), shift, dtype=torch.float64)).route()
    torch.testing.assert_close(there.poses, here.poses + shift, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there.logits, here.logits, rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(4)), st.permutations(range(3)), st.sampled_from(ACTIVATIONS))
def test_the_order_of_child_and_parent_types_is_only_a_name(children, parents, activation):
    layer = make_layer((4, 3, 1), child_types=4, activation=activation)
    renamed = replace(
        layer,
        poses=layer.poses[:, :, children],
        activations=layer.activations[:, :, children],
        transforms=layer.transforms[:, children][:, :, parents],
        beta_a=layer.beta_a[parents],
        beta_u=layer.beta_u[parents],
    ).route()
    routed = layer.route()
    torch.testing.assert_close(renamed.poses, routed.poses[:, :, parents])
    torch.testing.assert_close(renamed.logits, routed.logits[:, :, parents])


@pytest.mark.parametrize("n", [0, 1, 5])
def test_routing_in_parts_changes_nothing(n, monkeypatch):
    layer = make_layer((4, 3, 1), n=n)
    whole = layer.route()
    monkeypatch.setattr(em, "MAX_CPU_VOTES", 1)
    parts = layer.route()
    assert whole.poses.shape == (n, 4, 3, 16)
    torch.testing.assert_close(parts.poses, whole.poses)
    torch.testing.assert_close(parts.logits, whole.logits)
