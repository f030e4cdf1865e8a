"""Uniform coupling, dynamic routing in windows, attention and self-routing: against loops, and their properties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustcaps.capsules.routing import (
    Wiring,
    convolution,
    dynamic_routing,
    dynamic_window_routing,
    fully_connected,
    inverted_attention_routing,
    log_coupling,
    log_odds,
    matrix_votes,
    routing_logits,
    self_attention_routing,
    self_routing,
    squash,
    uniform_routing,
)
from tests.capsules import reference, reference_routings
from tests.capsules.em_layers import COMPETITIONS, Grid

GRIDS: list[Grid] = [(5, 3, 2), (4, 3, 1), (3, 2, 2), (2, 2, 1), (1, 1, 1)]
"""Overlapping windows, dense windows, disjoint windows, one window, a single position."""
CHILD_TYPES, TYPES = 2, 3
Routing = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From votes (n, P, C, I, H) to poses (n, P, C, H) and coefficients (n, P, C, I)."""


@dataclass(frozen=True)
class Layer:
    """Children, transforms and routing parameters of a layer, in float64."""

    grid: Grid
    poses: Tensor
    activations: Tensor
    transforms: Tensor
    weights: Tensor
    bias: Tensor
    prior: Tensor
    gain: Tensor

    @property
    def wiring(self) -> Wiring:
        return convolution(*self.grid)

    @property
    def votes(self) -> Tensor:
        return matrix_votes(self.poses, self.transforms, self.wiring)

    @property
    def logits(self) -> Tensor:
        return routing_logits(self.poses, self.weights, self.bias, self.wiring)

    def loop_votes(self, sample: int) -> reference.Votes:
        edges = reference.convolution_edges(*self.grid)
        return reference.matrix_votes(self.poses[sample].numpy(), self.transforms.numpy(), None, edges)

    def slots(self) -> dict[tuple[int, int], int]:
        """The slot of a child position in the window of a parent position."""
        return {(q, p): s for q, p, s in reference.convolution_edges(*self.grid)}


def make_layer(grid: Grid, *, n: int = 2, shared: bool = False, seed: int = 0) -> Layer:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    size, kernel, _ = grid
    slots = () if shared else (kernel * kernel,)
    return Layer(
        grid,
        poses=draw(n, size * size, CHILD_TYPES, 16),
        activations=draw(n, size * size, CHILD_TYPES).sigmoid(),
        transforms=0.3 * draw(*slots, CHILD_TYPES, TYPES, 4, 4),
        weights=0.5 * draw(*slots, CHILD_TYPES, TYPES, 16),
        bias=draw(*slots, CHILD_TYPES, TYPES),
        prior=0.3 * draw(TYPES, kernel * kernel * CHILD_TYPES),
        gain=1 + 0.3 * draw(16),
    )


def routings(layer: Layer, competition: Any) -> dict[str, Routing]:
    """Every routing of votes as a function of the votes alone."""
    wiring, gain = layer.wiring, layer.gain
    options: dict[str, Any] = {"competition": competition}
    norm = {"gain": gain, "bias": gain.flip(0), **options}
    return {
        "dynamic 1": lambda votes: dynamic_window_routing(votes, wiring, iterations=1, **options),
        "dynamic 3": lambda votes: dynamic_window_routing(votes, wiring, iterations=3, **options),
        "assign": lambda votes: dynamic_window_routing(votes, wiring, iterations=3, update="assign", **options),
        "self-attention": lambda votes: self_attention_routing(votes, wiring, prior=layer.prior, **options),
        "inverted-attention 1": lambda votes: inverted_attention_routing(votes, wiring, iterations=1, **norm),
        "inverted-attention 3": lambda votes: inverted_attention_routing(votes, wiring, iterations=3, **norm),
        "self-routing": lambda votes: self_routing(votes, layer.activations, layer.logits, wiring, **options)[::2],
    }


NAMES = list(routings(make_layer((2, 2, 1)), "field"))


def loop_routing(layer: Layer, name: str, competition: str, sample: int) -> Any:
    """Poses and coefficients of one sample by loops; of self-routing also the activations."""
    votes, slots = layer.loop_votes(sample), layer.slots()
    if name == "self-attention":

        def prior(i: reference.Child, j: reference.Parent) -> float:
            return float(layer.prior[j[1], slots[i[0], j[0]] * CHILD_TYPES + i[1]])

        return reference_routings.self_attention(votes, competition, prior)
    if name.startswith("inverted"):
        gain = layer.gain.numpy()
        options: dict[str, Any] = {"iterations": int(name[-1]), "gain": gain, "bias": gain[::-1]}
        return reference_routings.inverted_attention(votes, competition, **options)
    if name == "self-routing":
        u, A, b = layer.poses[sample].numpy(), layer.weights.numpy(), layer.bias.numpy()
        logits = {
            (i, j): float(
                u[i] @ (A[i[1], j[1]] if A.ndim == 3 else A[slots[i[0], j[0]], i[1], j[1]])
                + (b[i[1], j[1]] if b.ndim == 2 else b[slots[i[0], j[0]], i[1], j[1]])
            )
            for i, j in votes
        }
        activations = dict(np.ndenumerate(layer.activations[sample].numpy()))
        return reference_routings.self_routing(votes, competition, activations, logits)
    update = "assign" if name == "assign" else "increment"
    iterations = 1 if name == "dynamic 1" else 3
    return reference_routings.dynamic(votes, competition, iterations=iterations, update=update)


def assert_matches_loops(layer: Layer, sample: int, ours: tuple[Tensor, Tensor], expected: Any) -> None:
    poses, c = ours
    slots = layer.slots()
    for j, pose in expected[0].items():
        np.testing.assert_allclose(poses[sample][j].numpy(), pose, rtol=1e-9, atol=1e-10)
    for (i, j), value in expected[1].items():
        child = slots[i[0], j[0]] * CHILD_TYPES + i[1]
        assert c[sample][(*j, child)].item() == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_routing_agrees_with_the_loops(name, grid, competition):
    layer = make_layer(grid, shared=grid == (4, 3, 1))
    ours = routings(layer, competition)[name](layer.votes)
    for sample in range(2):
        assert_matches_loops(layer, sample, ours, loop_routing(layer, name, competition, sample))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_uniform_routing_agrees_with_the_loops(grid, competition, shared):
    layer = make_layer(grid, shared=shared)
    s = uniform_routing(layer.poses, layer.transforms, layer.wiring, competition=competition)
    for sample in range(2):
        expected, _ = reference_routings.uniform(layer.loop_votes(sample), competition)
        for j, pose in expected.items():
            np.testing.assert_allclose(s[sample][j].numpy(), pose, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_self_routing_activations_are_shares_of_the_support(grid, competition):
    layer = make_layer(grid)
    _, odds, _ = self_routing(layer.votes, layer.activations, layer.logits, layer.wiring, competition=competition)
    torch.testing.assert_close(odds.sigmoid().sum(dim=2), torch.ones_like(odds[:, :, 0]))
    for sample in range(2):
        *_, expected = loop_routing(layer, "self-routing", competition, sample)
        for j, activation in expected.items():
            assert odds[sample][j].sigmoid().item() == pytest.approx(activation, rel=1e-9)


def test_self_routing_denominator_is_the_papers():
    """With all parents at one position, a_j = sum_i c_ij a_i / sum_i a_i."""
    layer = make_layer((2, 2, 1))
    _, odds, c = self_routing(layer.votes, layer.activations, layer.logits, layer.wiring)
    a = layer.activations.flatten(1)
    torch.testing.assert_close(odds.sigmoid().squeeze(1), (c.squeeze(1) @ a[..., None]).squeeze(2) / a.sum(1)[:, None])


@pytest.mark.parametrize("grid", [(4, 3, 1), (2, 2, 1)], ids=str)
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_right(name, competition, grid):
    layer = make_layer(grid, n=1)
    votes = layer.votes.requires_grad_()
    route = routings(layer, competition)[name]
    assert torch.autograd.gradcheck(lambda v: route(v)[0], votes, fast_mode=True)


@pytest.mark.parametrize("competition", COMPETITIONS)
def test_gradients_of_learned_routing_are_right(competition):
    layer = make_layer((4, 3, 1), n=1)
    wiring, votes = layer.wiring, layer.votes
    inputs = [x.clone().requires_grad_() for x in (layer.poses, layer.activations, layer.weights, layer.bias)]

    def route(poses: Tensor, activations: Tensor, weights: Tensor, bias: Tensor) -> Any:
        logits = routing_logits(poses, weights, bias, wiring)
        return self_routing(votes, activations, logits, wiring, competition=competition)

    assert torch.autograd.gradcheck(route, inputs, fast_mode=True)
    prior, gain = layer.prior.clone().requires_grad_(), layer.gain.clone().requires_grad_()
    options: dict[str, Any] = {"competition": competition}
    assert torch.autograd.gradcheck(
        lambda b: self_attention_routing(votes, wiring, prior=b, **options), prior, fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda g: inverted_attention_routing(votes, wiring, iterations=2, gain=g, bias=g, **options),
        gain,
        fast_mode=True,
    )
    poses, transforms = layer.poses.clone().requires_grad_(), layer.transforms.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda u, W: uniform_routing(u, W, wiring, **options), (poses, transforms), fast_mode=True
    )


def sum_over_rivals(c: Tensor, wiring: Wiring, competition: str) -> Tensor:
    """Sum c (n, P, C, I) over the parents that compete for each child that any window contains."""
    n, positions, types, children = c.shape
    if competition == "position":
        return c.sum(dim=2)
    slots = wiring.windows.shape[1]
    totals = c.new_zeros(n, len(wiring.rivals), types, children // slots)
    by_slot = c.view(n, positions, types, slots, -1).transpose(2, 3).flatten(1, 2)
    totals.index_add_(1, wiring.windows.flatten(), by_slot)
    seen = totals[:, wiring.copies > 0]
    return seen if competition == "type" else seen.sum(dim=2)


@settings(deadline=None, max_examples=60)
@given(
    grid=st.sampled_from(GRIDS),
    competition=st.sampled_from(COMPETITIONS),
    name=st.sampled_from(NAMES),
    scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    seed=st.integers(0, 2**31),
)
def test_coefficients_sum_to_one_over_competing_parents(grid, competition, name, scale, seed):
    layer = make_layer(grid, seed=seed)
    _, c = routings(layer, competition)[name](scale * layer.votes)
    total = sum_over_rivals(c, layer.wiring, competition)
    torch.testing.assert_close(total, torch.ones_like(total))
    assert (c >= 0).all()


@settings(deadline=None, max_examples=30)
@given(competition=st.sampled_from(COMPETITIONS), name=st.sampled_from(NAMES), seed=st.integers(0, 2**31))
def test_the_order_of_child_types_does_not_matter(competition, name, seed):
    layer = make_layer((4, 3, 1), seed=seed)
    order = torch.arange(CHILD_TYPES).flip(0)
    children = torch.arange(9 * CHILD_TYPES).view(9, CHILD_TYPES)[:, order].flatten()
    turned = Layer(
        layer.grid,
        poses=layer.poses[:, :, order],
        activations=layer.activations[:, :, order],
        transforms=layer.transforms[:, order],
        weights=layer.weights[:, order],
        bias=layer.bias[:, order],
        prior=layer.prior[:, children],
        gain=layer.gain,
    )
    poses, c = routings(layer, competition)[name](layer.votes)
    turned_poses, turned_c = routings(turned, competition)[name](turned.votes)
    torch.testing.assert_close(turned_poses, poses)
    torch.testing.assert_close(turned_c, c[..., children])


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "self-routing"])
def test_equal_votes_are_divided_equally(name, competition):
    """If a child's vote is the same for all parents, and all children agree, no parent is preferred."""
    layer = make_layer((4, 3, 1))
    votes = torch.linspace(-1, 1, 16, dtype=torch.float64).expand(layer.votes.shape).contiguous()
    _, c = routings(layer, competition)[name](votes)
    wiring = layer.wiring
    copies = wiring.copies[wiring.windows]
    parents = {"field": TYPES * copies, "position": torch.full_like(copies, TYPES), "type": copies}[competition]
    expected = parents.double().reciprocal().repeat_interleave(CHILD_TYPES, dim=1)[None, :, None].expand_as(c)
    torch.testing.assert_close(c, expected)


def test_equal_routing_logits_divide_a_child_equally():
    layer = make_layer((2, 2, 1))
    _, odds, c = self_routing(layer.votes, layer.activations, torch.zeros_like(layer.logits), layer.wiring)
    torch.testing.assert_close(c, torch.full_like(c, 1 / TYPES))
    torch.testing.assert_close(odds.sigmoid(), torch.full_like(odds, 1 / TYPES))


@pytest.mark.parametrize("update", ["increment", "assign"])
def test_fully_connected_windows_are_dynamic_routing(update):
    votes = make_layer((3, 3, 1)).votes
    s, _ = dynamic_window_routing(votes, fully_connected(9), iterations=3, update=update)
    torch.testing.assert_close(s.squeeze(1), dynamic_routing(votes.squeeze(1), iterations=3, update=update))


def test_one_iteration_is_uniform_coupling():
    layer = make_layer((4, 3, 1))
    s, _ = dynamic_window_routing(layer.votes, layer.wiring, iterations=1)
    torch.testing.assert_close(s, uniform_routing(layer.poses, layer.transforms, layer.wiring))


def test_attention_moves_children_to_the_parent_they_agree_on():
    agreed = torch.ones(1, 1, 1, 4, 16)
    mixed = torch.tensor([1.0, -1, 1, -1]).view(1, 1, 1, 4, 1).expand(1, 1, 1, 4, 16)
    votes, wiring = torch.cat([agreed, mixed], dim=2), fully_connected(4)
    _, c = self_attention_routing(votes, wiring)
    assert (c[0, 0, 0] > 0.9).all()
    _, c = dynamic_window_routing(votes, wiring, iterations=3)
    assert (c[0, 0, 0] > 0.9).all()


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e6])
@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("name", NAMES)
def test_extreme_votes_are_finite_with_finite_gradients(name, competition, scale):
    """In float32, as in training."""
    double = make_layer((4, 3, 1))
    layer = Layer(
        double.grid, **{name: value.float() for name, value in vars(double).items() if isinstance(value, Tensor)}
    )
    votes = (scale * layer.votes).requires_grad_()
    poses, c = routings(layer, competition)[name](votes)
    (gradient,) = torch.autograd.grad(squash(poses).sum(), votes)
    assert all(torch.isfinite(x).all() for x in (poses, c, gradient))


def test_log_odds_do_not_saturate():
    log_support = torch.tensor([0.0, -60.0, -80.0], requires_grad=True)
    odds = log_odds(log_support)
    torch.testing.assert_close(odds, torch.tensor([60.0, -60.0, -80.0]))
    (gradient,) = torch.autograd.grad(odds[0], log_support)
    torch.testing.assert_close(gradient, torch.tensor([1.0, -1.0, 0.0]), rtol=0, atol=1e-6)


def test_coupling_of_extreme_logits_is_exact():
    logits = torch.tensor([1e4, 0.0, -1e4]).view(1, 1, 3, 1)
    assert log_coupling(logits, fully_connected(1), "field").flatten().tolist() == [0.0, -1e4, -2e4]
