from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import robustcaps as rc
from robustcaps.capsules.interventions import UNIFORM
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier
from robustcaps.models.routed_capsnet import OPTIONS, RoutedCapsNet, RoutingName, UnroutedCNN
from tests.capsules.em_layers import COMPETITIONS
from tests.capsules.test_routings import sum_over_rivals

ROUTINGS: tuple[RoutingName, ...] = get_args(RoutingName)
CAPSULES = [name for name in ROUTINGS if name != "cnn"]
SIZE, CLASSES = 24, 4
"""The convolutional capsules have 2x2 positions."""


def draw_images(n: int = 4, *, size: int = SIZE, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.interpolate(torch.rand(n, 1, 5, 5, generator=generator), size=size, mode="bilinear")


def build(routing: str, **options: Any) -> Classifier:
    model = rc.build_model("routed-capsnet", classes=CLASSES, channels=1, size=SIZE, routing=routing, **options)
    assert isinstance(model, Classifier)
    return model


def build_ready(routing: str, **options: Any) -> RoutedCapsNet:
    """Build an initialised model with running statistics, in eval mode."""
    model = build(routing, **options)
    assert isinstance(model, RoutedCapsNet)
    images = draw_images(32, seed=1)
    model.initialise(images)
    for module in model.stem.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.stem(model.normaliser.eval()(images))
    return model.eval()


def count(routing: str) -> int:
    model = rc.build_model("routed-capsnet", classes=5, channels=1, size=32, routing=routing)
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_routing_has_as_many_parameters():
    counts = {routing: count(routing) for routing in ROUTINGS}
    assert set(counts) == set(OPTIONS)
    assert max(counts.values()) <= 1.1 * min(counts.values()), counts
    assert 60_000 <= min(counts.values()) <= max(counts.values()) <= 80_000


@pytest.mark.parametrize("routing", CAPSULES)
def test_outputs(routing):
    model, images = build_ready(routing), draw_images()
    output = model.classify(images)
    assert isinstance(model, CapsuleClassifier)
    assert output.poses is not None
    assert output.poses.shape == (4, CLASSES, 16)
    torch.testing.assert_close(output.scores, output.logits.sigmoid())
    assert model.votes(images).shape == (4, CLASSES, 4 * model.types[1], 16)
    unrouted, routed = model.vote_logits(images)
    torch.testing.assert_close(routed, output.logits)
    assert unrouted.shape == routed.shape


@pytest.mark.parametrize("routing", CAPSULES)
def test_vote_logits_have_gradients_and_routed_logits_have_none(routing):
    model, images = build_ready(routing), draw_images().requires_grad_()
    unrouted, routed = model.vote_logits(images)
    assert not routed.requires_grad
    (gradient,) = torch.autograd.grad((unrouted[:, 0] - unrouted[:, 1]).sum(), images)
    assert torch.isfinite(gradient).all()
    assert (gradient.flatten(1).abs().amax(dim=1) > 0).all()


@pytest.mark.parametrize("competition", COMPETITIONS)
@pytest.mark.parametrize("routing", CAPSULES)
def test_coefficients_sum_to_one(routing, competition):
    model, images = build_ready(routing, competition=competition), draw_images()
    children = model.primary(model.stem(model.normaliser(images)))
    first = model.convolutional(*children)
    coefficients = {
        "convolutional": model.convolutional.coefficients(*children),
        "classes": model.class_capsules.coefficients(first.poses, first.activations),
    }
    primary, convolutional = model.types
    assert coefficients["convolutional"].shape == (4, 4, convolutional, 9 * primary)
    assert coefficients["classes"].shape == (4, 1, CLASSES, 4 * convolutional)
    for name, layer in model.layers.items():
        total = sum_over_rivals(coefficients[name], layer.wiring, layer.competition)
        tolerance = 1e-3 if routing == "em" and competition == "type" else 1e-5  # EM leaves a share for outliers
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=tolerance)


@pytest.mark.parametrize("routing", CAPSULES)
def test_health_metrics_are_entropies(routing):
    metrics = build_ready(routing).health_metrics(draw_images(8))
    assert set(metrics) == {"convolutional_entropy", "classes_entropy"}
    assert all(0 < value <= 1 + 1e-5 for value in metrics.values())
    if routing in {"uniform", "shared"}:
        assert metrics == pytest.approx({"convolutional_entropy": 1, "classes_entropy": 1})


@pytest.mark.parametrize("routing", ["dynamic", "em", "inverted-attention"])
def test_one_iteration_gives_uniform_coefficients(routing):
    model = build_ready(routing, iterations=1)
    metrics = model.health_metrics(draw_images())
    assert metrics == pytest.approx({"convolutional_entropy": 1, "classes_entropy": 1}, abs=1e-4)


def test_one_iteration_of_dynamic_routing_is_uniform_routing():
    dynamic, uniform, images = build_ready("dynamic", iterations=1), build_ready("uniform"), draw_images()
    uniform.load_state_dict(dynamic.state_dict())
    torch.testing.assert_close(uniform(images), dynamic(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("routing", CAPSULES)
def test_class_logits_start_unsaturated(routing):
    logits = build_ready(routing)(draw_images(32, seed=1))
    assert logits.abs().max() < 5
    assert logits.std() > 0.01


@pytest.mark.parametrize("routing", CAPSULES)
def test_parameter_groups_hold_every_parameter_once(routing):
    model = build_ready(routing)
    groups = model.parameter_groups(1e-3)
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))
    assert all(1e-5 < group["lr"] < 0.2 for group in groups)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_parameter_is_trained(routing):
    model = build(routing)
    images, labels = draw_images(8), torch.arange(8) % CLASSES
    if isinstance(model, RoutedCapsNet):
        model.initialise(images)
    loss = model.training_loss(images, labels)
    assert loss.shape == (8,)
    loss.sum().backward()
    for name, parameter in model.named_parameters():
        if (routing, name) == ("self-routing", "class_capsules.transforms"):  # no loss uses the poses of classes
            continue
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("routing", ROUTINGS)
def test_training_learns_a_tiny_batch(routing):
    model, images, labels = build(routing).train(), draw_images(8), torch.arange(8) % CLASSES
    groups: Any = [{"params": list(model.parameters()), "lr": 3e-3}]
    if isinstance(model, RoutedCapsNet):
        model.initialise(images)
        groups = model.parameter_groups(3e-3)
    optimiser = torch.optim.Adam(groups)
    losses = []
    for _ in range(15):
        loss = model.training_loss(images, labels).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) / 3 < 0.9 * losses[0]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_sample_does_not_depend_on_its_neighbours(routing):
    model = build("cnn").eval() if routing == "cnn" else build_ready(routing)
    images = draw_images(20)
    together = model(images)
    for alone in (model(images[2:3]), model(images[[2, 5]])[:1], model(images.flip(0))[17:18]):
        torch.testing.assert_close(alone, together[2:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_constant_images_are_finite_with_finite_gradients(routing, value):
    model = build("cnn").eval() if routing == "cnn" else build_ready(routing)
    images = torch.full((2, 1, SIZE, SIZE), value, requires_grad=True)
    logits = model(images)
    (gradient,) = torch.autograd.grad(logits.square().sum(), images)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_compiled_model_agrees(routing):
    model, images = build("cnn").eval() if routing == "cnn" else build_ready(routing), draw_images()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-3, atol=1e-3)


def test_the_control_has_no_capsules():
    model = build("cnn")
    assert isinstance(model, UnroutedCNN)
    assert not isinstance(model, CapsuleClassifier)


@pytest.mark.parametrize(
    ("routing", "options"),
    [
        ("uniform", {"iterations": 3}),
        ("dynamic", {"variance_floor": 0.1}),
        ("em", {"update": "assign"}),
        ("self-routing", {"iterations": 1}),
        ("cnn", {"competition": "field"}),
    ],
)
def test_options_of_other_routings_are_refused(routing, options):
    (name,) = options
    with pytest.raises(UserError, match=f"routing '{routing}' has no option '{name}'; its options: "):
        build(routing, **options)


@pytest.mark.parametrize(
    ("routing", "options"),
    [
        ("dynamic", {"iterations": 1}),
        ("dynamic", {"update": "assign"}),
        ("dynamic", {"competition": "position"}),
        ("em", {"iterations": 1}),
        ("em", {"competition": "type"}),
        ("em", {"variance_floor": 0.001}),
        ("em", {"vote_std": 0.5}),
        ("em", {"mean_momentum": 0.1}),
        ("em", {"start": "types"}),
        ("em", {"schedule": "rising"}),
        ("inverted-attention", {"iterations": 1}),
        ("self-routing", {"competition": "position"}),
        ("self-attention", {"types": [4, 4]}),
    ],
    ids=str,
)
def test_options_change_the_model(routing, options):
    images = draw_images()
    assert not torch.allclose(build_ready(routing)(images), build_ready(routing, **options)(images), rtol=1e-4)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_images_that_are_too_small_are_refused(routing):
    with pytest.raises(UserError, match="16x16 are too small; they must be at least 17x17"):
        rc.build_model("routed-capsnet", classes=3, channels=1, size=16, routing=routing)
    rc.build_model("routed-capsnet", classes=3, channels=1, size=17, routing=routing)


INTERVENTIONS = {
    "dynamic": ["uniform assignments", "2 iterations"],
    "em": ["uniform assignments", "constant sigma", "1 iteration", "2 iterations"],
}


@pytest.mark.parametrize("routing", CAPSULES)
def test_interventions(routing):
    """Uniform coefficients change what routing decides, and nothing in a network without routing."""
    model, images = build_ready(routing), draw_images()
    interventions = {each.name: model.intervened_logits(images, each) for each in model.interventions}
    assert list(interventions) == INTERVENTIONS.get(routing, ["uniform assignments"])
    logits = model(images)
    for name, changed in interventions.items():
        assert changed.shape == logits.shape and torch.isfinite(changed).all()
        assert torch.allclose(changed, logits, atol=1e-5) == (routing in {"uniform", "shared"}), name


@pytest.mark.parametrize("routing", ["dynamic", "inverted-attention"])
def test_uniform_coefficients_are_those_of_one_iteration(routing):
    model, single, images = build_ready(routing), build_ready(routing, iterations=1), draw_images()
    single.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.intervened_logits(images, UNIFORM), single(images))


@pytest.mark.parametrize("routing", CAPSULES)
def test_routing_statistics(routing):
    statistics = build_ready(routing).routing_statistics(draw_images())
    assert list(statistics) == ["convolutional", "classes"]
    for values in statistics.values():
        assert values["entropy"].shape == (4,)
        assert values["activations"].shape[0] == 4
        assert ("sigma_ratio" in values) == (routing == "em")
    if routing == "em":
        assert (statistics["classes"]["sigma_ratio"] >= 1).all()
