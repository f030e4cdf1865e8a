from __future__ import annotations

import itertools
import shutil
from dataclasses import asdict
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

import robustcaps as rc
from robustcaps.capsules.layers import (
    DynamicRules,
    EMRules,
    MatrixCapsules,
    MatrixPrimaryCapsules,
    VectorCapsules,
    VectorPrimaryCapsules,
    capsule_grid,
)
from robustcaps.capsules.routing import Wiring, convolution, fully_connected
from robustcaps.models.matrix_capsnet import MatrixCapsNet

WIRINGS = {"convolution": convolution(5, 3, 2), "fully_connected": fully_connected(25)}
CHOICES = {name: get_args(hint) for name, hint in get_type_hints(EMRules).items() if get_args(hint)}
"""The words to choose from for each rule of EM routing that is a choice."""
MAX_CHANGES = 3
"""Rules are tested in all combinations of that many choices other than the usual."""
RULES = [
    EMRules(**dict(zip(CHOICES, chosen, strict=True)))
    for chosen in itertools.product(*CHOICES.values())
    if sum(word != words[0] for word, words in zip(chosen, CHOICES.values(), strict=True)) <= MAX_CHANGES
]
RULES += [EMRules(iterations=1), EMRules(iterations=5), EMRules(variance_floor=1.0), EMRules(mean_momentum=0.1)]


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def matrix_children(n: int = 8, positions: int = 25, types: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, positions, types, 16), torch.rand(n, positions, types)


def make_matrix_layer(wiring: Wiring, rules: EMRules, offsets: Tensor | None = None) -> MatrixCapsules:
    shared = len(wiring.windows) == 1
    return MatrixCapsules(wiring, child_types=4, types=3, rules=rules, shared=shared, offsets=offsets)


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
    assert 0 < activations.min() < activations.max() < 1
    torch.testing.assert_close(primary(2 * features)[0], 2 * poses)
    for laid_out in (features[..., :3], features.to(memory_format=torch.channels_last), features[:0]):
        poses, activations = primary(laid_out)
        torch.testing.assert_close(poses, capsule_grid(primary.pose(laid_out), 3))
        torch.testing.assert_close(activations, capsule_grid(primary.activation(laid_out).sigmoid(), 3).squeeze(-1))


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


def describe(rules: EMRules) -> str:
    """Say what differs from the usual rules."""
    usual = asdict(EMRules())
    return " ".join(f"{name}={value}" for name, value in asdict(rules).items() if value != usual[name]) or "usual"


@pytest.mark.parametrize(
    "change",
    [
        *({name: word} for name, words in CHOICES.items() if name not in {"poses", "betas"} for word in words[1:]),
        {"iterations": 1},
        {"variance_floor": 1.0},
        {"mean_momentum": 0.3},
    ],
    ids=str,
)
def test_rules_reach_the_routing(change):
    poses, activations = matrix_children()
    layer = make_matrix_layer(WIRINGS["convolution"], EMRules())
    usual = layer(poses, activations).logits
    layer.rules = EMRules(**change)
    assert not torch.allclose(layer(poses, activations).logits, usual, rtol=1e-3)


@pytest.mark.parametrize(("poses", "side"), [("matrix", 4), ("vector", 16)])
@pytest.mark.parametrize(("betas", "prices"), [("type", 3), ("shared", 1)])
def test_rules_shape_the_parameters(poses, side, betas, prices):
    layer = make_matrix_layer(WIRINGS["convolution"], EMRules(poses=poses, betas=betas))
    assert layer.transforms.shape == (9, 4, 3, side, side)
    assert layer.beta_a.shape == layer.beta_u.shape == (prices,)


def test_shared_betas_are_the_same_beta_for_every_type():
    poses, activations = matrix_children()
    per_type = make_matrix_layer(WIRINGS["convolution"], EMRules())
    shared = make_matrix_layer(WIRINGS["convolution"], EMRules(betas="shared"))
    with torch.no_grad():
        shared.transforms.copy_(per_type.transforms)
        for layer in (per_type, shared):
            layer.beta_a.fill_(0.7)
            layer.beta_u.fill_(0.4)
    torch.testing.assert_close(shared(poses, activations).logits, per_type(poses, activations).logits)
    for layer in (per_type, shared):
        layer(poses, activations).activations.square().sum().backward()
    for one, many in ((shared.beta_a, per_type.beta_a), (shared.beta_u, per_type.beta_u)):
        assert one.grad is not None and many.grad is not None
        torch.testing.assert_close(one.grad.squeeze(), many.grad.sum(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("rules", RULES, ids=describe)
def test_any_rules_start_soft(rules, wiring):
    """Finite logits of the chosen spread."""
    if (rules.activation, rules.competition, wiring) == ("mixture", "type", "fully_connected"):
        pytest.skip("types do not compete in a single window, so all have the same share")
    poses, activations = matrix_children()
    layer = make_matrix_layer(WIRINGS[wiring], rules)
    layer.initialise(poses, activations)
    logits = layer(poses, activations).logits
    assert torch.isfinite(logits).all()
    low, high = {"cost": (0.05, 1.2), "mean-cost": (0.14, 0.16), "mixture": (0.01, 1.2)}[rules.activation]
    assert low <= logits.std().item() <= high


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("rules", RULES, ids=describe)
def test_any_rules_train(rules, wiring):
    """A step of training with finite gradients that moves what is learned."""
    poses, activations = matrix_children()
    layer = make_matrix_layer(WIRINGS[wiring], rules)
    layer.initialise(poses, activations)
    before = {name: value.detach().clone() for name, value in layer.named_parameters()}
    optimiser = torch.optim.Adam(layer.parameter_groups(1e-3))
    routed = layer(poses, activations)
    (routed.activations[..., 0].mean() + routed.poses.square().mean()).backward()
    optimiser.step()
    learned = {"transforms"} if rules.activation == "mixture" else {"transforms", "beta_a", "beta_u"}
    for name, value in layer.named_parameters():
        assert torch.isfinite(value).all(), name
        assert value.grad is None or torch.isfinite(value.grad).all(), name
        assert torch.equal(value, before[name]) == (name not in learned), name


@pytest.mark.parametrize("rules", RULES, ids=describe)
def test_the_last_step_to_look_at_is_what_the_layer_finds(rules):
    poses, activations = matrix_children()
    layer = make_matrix_layer(WIRINGS["fully_connected"], rules, offsets=torch.rand(25, 16))
    layer.initialise(poses, activations)
    *_, last = layer.steps(poses, activations)
    routed = layer(poses, activations)
    torch.testing.assert_close(last.parents.poses, routed.poses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(last.parents.logits, routed.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("offsets", [None, torch.linspace(0, 1, 25 * 16).view(25, 16)], ids=["plain", "offsets"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_initialise_sets_the_scales(wiring, offsets):
    """The votes' before offsets are added."""
    poses, activations = matrix_children()
    added = offsets[: WIRINGS[wiring].windows.shape[1]] if offsets is not None else None
    layer = make_matrix_layer(WIRINGS[wiring], EMRules(), added)
    layer.initialise(poses, activations)
    routed, votes = layer(poses, activations), layer.votes(poses)
    plain = votes if added is None else votes - added.repeat_interleave(4, dim=0)
    assert plain.std().item() == pytest.approx(0.05, rel=1e-3)
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
    layer = MatrixCapsules(fully_connected(4), child_types=2, types=3, rules=EMRules(iterations=4, schedule="rising"))
    layer.inverse_temperature.fill_(0.8)
    assert layer.inverse_temperatures.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_released_lambda() -> None:
    """lambda (1 - 0.95^t) for t = 1, 2, 3."""
    layer = MatrixCapsules(fully_connected(4), child_types=2, types=3, rules=EMRules(schedule="released"))
    layer.inverse_temperature.fill_(0.02)
    assert layer.inverse_temperatures.tolist() == pytest.approx([0.001, 0.00195, 0.0028525])


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "matrix-capsnet-small": [
        *({name: word} for name, words in CHOICES.items() for word in words[1:]),
        {"iterations": 1},
        {"coordinates": False},
        {"normalise": "none"},
    ],
    "vector-capsnet-small": [{"iterations": 1}, {"update": "assign"}, {"transforms": "shared"}],
}
ZOO = ["cnn", "cnn-small", "vector-capsnet", "vector-capsnet-small", "matrix-capsnet", "matrix-capsnet-small"]


def build_small(name: str, **options: Any) -> nn.Module:
    """Build a model of the zoo, with few capsule types, on small images."""
    if name.startswith("matrix"):
        options = {"filters": 4, "types": (2, 3, 2), **options}
    model = rc.build_model(name, classes=3, channels=1, size=24, **options)
    if isinstance(model, MatrixCapsNet):
        model.initialise(torch.rand(8, 1, 24, 24))
    return model.eval()


def assert_compiled_model_agrees(model: nn.Module, backend: str) -> None:
    """In its logits, and in its gradient by the images, which is what an attack asks for."""
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    images, weights = torch.rand(4, 1, 24, 24, requires_grad=True), torch.randn(4, 3)
    logits, expected = compiled(images), model(images)
    assert expected.std() > 1e-3
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    gradients = [torch.autograd.grad((weights * found).sum(), images)[0] for found in (logits, expected)]
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-2 * gradients[1].abs().max()


@pytest.mark.parametrize("name", ZOO)
def test_a_compiled_model_agrees(name):
    assert_compiled_model_agrees(build_small(name), backend="eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, table in OPTIONS.items() for options in table], ids=str
)
def test_a_compiled_model_with_other_options_agrees(name, options):
    assert_compiled_model_agrees(build_small(name, **options), backend="eager")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes of C++ compilation for EM routing, on a quiet machine
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler, g++")
@pytest.mark.parametrize("name", ZOO)
def test_a_model_compiled_to_machine_code_agrees(name):
    assert_compiled_model_agrees(build_small(name), backend="inductor")
