"""The definition with the options of the authors' released code against loops written from what that code does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustcaps.capsules.routing import Routed, Wiring, convolution, em, em_routing, fully_connected
from tests.capsules import released
from tests.capsules.released import Array, ReleasedLayer

CHILD_TYPES = 2
SAMPLES = 2


def draw_layers(size: int, types: int, final_beta: float, seed: int) -> list[ReleasedLayer]:
    """Samples with the same parameters, near the released initial values."""
    random = np.random.default_rng(seed)
    b_sigma, b_act = 0.5 + 0.1 * random.normal(size=types), 0.2 * random.normal(size=types)
    return [
        ReleasedLayer(
            poses=0.5 * random.normal(size=(size, size, CHILD_TYPES, 4, 4)),
            activations=random.uniform(size=(size, size, CHILD_TYPES)),
            b_sigma=b_sigma,
            b_act=b_act,
            final_beta=final_beta,
            support_eps=em.SUPPORT_EPS,
        )
        for _ in range(SAMPLES)
    ]


def route(layers: list[ReleasedLayer], transforms: Tensor, wiring: Wiring, **options: Any) -> Routed:
    """Route by the definition, with the parameters in its units."""
    first, t = layers[0], torch.arange(1, released.ITERATIONS + 1)
    return em_routing(
        torch.tensor(np.stack([layer.poses for layer in layers])).flatten(4).flatten(1, 2),
        torch.tensor(np.stack([layer.activations for layer in layers])).flatten(1, 2),
        transforms,
        wiring,
        beta_a=torch.tensor(-2500 * first.b_act),
        beta_u=torch.tensor(first.b_sigma * (math.log(2 * math.pi) + 1) / 2),
        inverse_temperature=2 * first.final_beta * (1 - 0.95 ** t.double()),
        variance_floor=5e-4,
        mean_momentum=0.1,
        start="types",
        backend="torch",
        **options,
    )


def assert_agree(routed: Routed, expected: list[tuple[Array, Array]]) -> None:
    for index, found in enumerate((routed.poses, routed.activations)):
        exact = torch.tensor(np.stack([sample[index] for sample in expected])).view_as(found)
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    assert routed.activations.std() > 0.03  # neither equal nor saturated


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "stride"), [(4, 1), (5, 2), (7, 2)])
def test_convolutional_layers(size, stride, seed):
    layers = draw_layers(size, 3, 0.01, seed)
    transforms = 0.3 * np.random.default_rng(seed + 100).normal(size=(3, 3, CHILD_TYPES, 3, 4, 4))
    wiring = convolution(size, 3, stride, pairing="stride-1")
    routed = route(layers, torch.tensor(transforms).flatten(0, 1), wiring, competition="type")
    assert_agree(routed, [released.route_convolution(layer, transforms, stride) for layer in layers])


@pytest.mark.parametrize("seed", range(3))
def test_the_class_layer(seed):
    size, classes = 3, 5
    layers, random = draw_layers(size, classes, 0.01 / 4, seed), np.random.default_rng(seed + 100)
    transforms, grid = 0.3 * random.normal(size=(CHILD_TYPES, classes, 4, 4)), 0.1 * random.normal(size=(size, size, 2))
    offsets = torch.zeros(size * size, 16, dtype=torch.float64)
    offsets[:, :2] = torch.tensor(grid).flatten(0, 1)
    wiring = fully_connected(size * size)
    routed = route(layers, torch.tensor(transforms), wiring, competition="field", offsets=offsets)
    assert_agree(routed, [released.route_classes(layer, transforms, grid) for layer in layers])


def test_pairing_and_competition_matter():
    """So that agreement with the loops means something."""
    layers = draw_layers(5, 3, 0.01, seed=0)
    transforms = 0.3 * torch.randn(9, CHILD_TYPES, 3, 4, 4, dtype=torch.float64, generator=torch.manual_seed(0))
    paired, by_child = convolution(5, 3, 2, pairing="stride-1"), convolution(5, 3, 2)
    as_released = route(layers, transforms, paired, competition="type").poses
    for other in (
        route(layers, transforms, by_child, competition="type").poses,
        route(layers, transforms, by_child, competition="field").poses,
    ):
        assert (other - as_released).abs().max() > 0.01
