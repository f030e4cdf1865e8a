from __future__ import annotations

import pytest
import torch
from torch import Tensor

from robustcaps.capsules.layers import (
    DynamicRules,
    EMRules,
    MatrixCapsules,
    MatrixPrimaryCapsules,
    VectorCapsules,
    VectorPrimaryCapsules,
    capsule_grid,
)
from robustcaps.capsules.routing import convolution, everywhere


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def matrix_children(n: int = 8, positions: int = 25, types: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, positions, types, 16), torch.rand(n, positions, types)


def test_a_capsule_comes_from_one_position_and_neighbouring_channels():
    features = torch.arange(2 * 6 * 3 * 5).view(2, 6, 3, 5)
    grid = capsule_grid(features, types=2)
    assert grid.shape == (2, 15, 2, 3)
    assert torch.equal(grid[1, 1 * 5 + 4, 1], features[1, 3:6, 1, 4])


@pytest.mark.parametrize("kind", ["vector", "matrix"])
def test_primary_capsules_do_not_mix_positions(kind):
    """Changing the features at one place changes the capsules there and nowhere else."""
    features = torch.randn(1, 6, 4, 4)
    changed = features.clone()
    changed[0, :, 2, 1] += 1
    if kind == "vector":
        vector = VectorPrimaryCapsules(6, types=3, pose=8, kernel=1, stride=1)
        difference = (vector(changed) - vector(features)).view(16, 3, 8)
    else:
        matrix = MatrixPrimaryCapsules(6, types=3)
        difference = (matrix(changed)[0] - matrix(features)[0]).view(16, 3, 16)
    moved = difference.abs().amin(dim=(1, 2)) > 0
    still = difference.abs().amax(dim=(1, 2)) == 0
    assert moved.nonzero().flatten().tolist() == [2 * 4 + 1]
    assert still.sum() == 15


def test_matrix_primary_poses_are_linear_and_activations_logistic():
    primary = MatrixPrimaryCapsules(6, types=3)
    features = torch.randn(2, 6, 4, 4)
    poses, activations = primary(features)
    assert poses.shape == (2, 16, 3, 16)
    assert activations.shape == (2, 16, 3)
    torch.testing.assert_close(primary(2 * features)[0], 2 * poses)
    assert 0 < activations.min() < activations.max() < 1


@pytest.mark.parametrize(("transforms", "parameters"), [("full", 20 * 3 * 16 * 8), ("shared", 3 * 16 * 8)])
def test_vector_capsules(transforms, parameters):
    rules = DynamicRules(transforms=transforms)
    layer = VectorCapsules(children=20, child_pose=8, parents=3, pose=16, rules=rules)
    assert layer(torch.randn(2, 20, 8)).shape == (2, 3, 16)
    assert sum(p.numel() for p in layer.parameters()) == parameters


def test_shared_vector_transforms_take_any_number_of_children():
    rules = DynamicRules(transforms="shared")
    layer = VectorCapsules(children=20, child_pose=8, parents=3, pose=16, rules=rules)
    assert layer(torch.randn(2, 7, 8)).shape == (2, 3, 16)


def test_betas_and_transforms_are_learned():
    layer = MatrixCapsules(convolution(5, 3, 2), child_types=4, types=3, rules=EMRules())
    layer(*matrix_children()).activations.sum().backward()
    assert {name for name, _ in layer.named_parameters()} == {"transforms", "beta_a", "beta_u"}
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


def test_rules_reach_the_routing():
    poses, activations = matrix_children()
    layer = MatrixCapsules(convolution(5, 3, 2), child_types=4, types=3, rules=EMRules())
    usual = layer(poses, activations).logits
    for rules in (
        EMRules(iterations=1),
        EMRules(competition="position"),
        EMRules(variance_floor=1.0),
        EMRules(schedule="rising"),
    ):
        layer.rules = rules
        assert not torch.allclose(layer(poses, activations).logits, usual, rtol=1e-3)


@pytest.mark.parametrize("shared", [False, True])
def test_initialise_sets_the_scales(shared):
    poses, activations = matrix_children()
    wiring = everywhere(25) if shared else convolution(5, 3, 2)
    layer = MatrixCapsules(wiring, child_types=4, types=3, rules=EMRules(), shared=shared)
    layer.initialise(poses, activations)
    routed = layer(poses, activations)
    assert layer.votes(poses).std().item() == pytest.approx(0.05, rel=1e-3)
    assert routed.logits.mean().item() == pytest.approx(0, abs=0.2)
    assert routed.logits.std().item() < 1
    empty = layer(poses, torch.zeros_like(activations)).logits
    torch.testing.assert_close(empty, torch.full_like(empty, -2.0))


def test_initialise_scales_the_primary_poses():
    primary, features = MatrixPrimaryCapsules(6, types=3), 7 * torch.randn(4, 6, 5, 5)
    primary.initialise(features)
    assert primary(features)[0].std().item() == pytest.approx(0.05, rel=1e-3)


def test_parameter_groups_hold_every_parameter_once():
    layer = MatrixCapsules(convolution(5, 3, 2), child_types=4, types=3, rules=EMRules())
    layer.inverse_temperature.fill_(0.5)
    with torch.no_grad():
        layer.transforms.mul_(2 / layer.transforms.std())
    rates = {id(parameter): group["lr"] for group in layer.parameter_groups(0.01) for parameter in group["params"]}
    expected = {id(layer.transforms): 0.02, id(layer.beta_u): 0.001, id(layer.beta_a): 0.1}
    assert rates == pytest.approx(expected)


def test_lambda_rises_to_its_value_in_the_last_iteration() -> None:
    layer = MatrixCapsules(everywhere(4), child_types=2, types=3, rules=EMRules(iterations=4, schedule="rising"))
    layer.inverse_temperature.fill_(0.8)
    assert layer.inverse_temperatures.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8])
