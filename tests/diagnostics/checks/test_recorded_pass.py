"""Gradients rebuilt from recorded operations, whatever a model tells autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import robustcaps as rc
from benchmarks.calibration.defences import CustomBackward
from benchmarks.calibration.partial_gradients import CutVectorRouting
from robustcaps.diagnostics.checks.recorded_pass import RecordedPass

IMAGES = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(36, 3, generator=torch.Generator().manual_seed(1))


def outputs(images):
    return torch.tanh(images.flatten(1)) @ WEIGHT


def inner_gradient(images):
    with torch.enable_grad():
        inner = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(inner.pow(3).sum(), inner)
    return gradient


def in_place(images):
    result = torch.zeros(len(images), 36)
    result[:, :18] = images.flatten(1)[:, :18]
    result[:, 18:].copy_(images.flatten(1)[:, 18:])
    return result.mul_(2).relu_() @ WEIGHT


def linear(images):
    return images.flatten(1) @ WEIGHT


def hidden(images):
    with torch.no_grad():
        return outputs(images)


def rebuilt(function, substitution="none", images=IMAGES):
    recorded = RecordedPass.record(function, images)
    return recorded.gradient(torch.ones_like(recorded.outputs), substitution)


def by_autograd(function, images=IMAGES):
    images = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(images).sum(), images)
    return gradient


@pytest.mark.parametrize(
    ("masking", "sound"),
    [
        (outputs, outputs),
        (in_place, in_place),
        (lambda x: outputs(x.detach()), outputs),
        (lambda x: outputs(x.data), outputs),
        (hidden, outputs),
        (torch.inference_mode()(outputs), outputs),
        (lambda x: outputs(CustomBackward.apply(x, torch.clone, torch.neg)), outputs),
        (lambda x: outputs(inner_gradient(x)), lambda x: outputs(3 * x.pow(2))),
        (lambda x: outputs(torch.where(x > 0.5, x.detach(), 2 * x)), lambda x: outputs(torch.where(x > 0.5, x, 2 * x))),
    ],
)
def test_rebuilt_gradients_are_those_of_the_chain_rule(masking, sound):
    assert torch.allclose(rebuilt(masking), by_autograd(sound), atol=1e-6)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: (8 * x).round() / 8,
        lambda x: (8 * x).floor() / 8,
        lambda x: (x * 64).to(torch.uint8).float() / 64,
        lambda x: torch.from_numpy(x.detach().numpy().copy()),
    ],
)
def test_steps_pass_gradients_by_a_substitute(step):
    assert torch.allclose(rebuilt(lambda x: step(x).flatten(1) @ WEIGHT, "steps"), by_autograd(linear))


@pytest.mark.parametrize(
    "step", [torch.sign, lambda x: (x > 0.5).float(), lambda x: x * (x > 0.5), lambda x: torch.where(x > 0.5, 1.0, 0.0)]
)
def test_signs_and_comparisons_have_a_substitute(step):
    gradient = rebuilt(lambda x: step(x - 0.1).flatten(1).sum(1, keepdim=True), "steps")
    assert bool((gradient > 0).any()) and bool(torch.isfinite(gradient).all())


def test_random_numbers_are_those_of_the_recorded_pass():
    torch.manual_seed(0)
    drawn = torch.rand_like(IMAGES)
    torch.manual_seed(0)
    gradient = rebuilt(lambda x: linear(torch.rand_like(x) * x))
    assert torch.allclose(gradient, drawn * by_autograd(linear))


def test_infinite_derivatives_count_as_zero():
    gradient = rebuilt(lambda x: linear(x + (x - x).sqrt()), "steps")
    assert torch.allclose(gradient, by_autograd(linear))


def test_a_model_that_ignores_its_images_has_no_gradient():
    assert bool((rebuilt(lambda x: torch.ones(len(x), 3)) == 0).all())


def test_buffers_that_a_pass_changes_do_not_change_its_gradient():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1))

        def forward(self, images):
            result = outputs(images) * self.scale
            self.scale.add_(1)
            return result

    assert torch.allclose(rebuilt(Counting()), by_autograd(outputs), atol=1e-6)


def test_gradients_cut_inside_capsule_routing_are_rebuilt():
    network = rc.build_model("vector-capsnet-small", classes=5, channels=1, size=32).eval()
    images = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(2))
    cut = CutVectorRouting(network, 2, assignments=True)
    sound, own = by_autograd(network, images), by_autograd(cut, images)
    assert torch.allclose(rebuilt(cut, images=images), sound, atol=1e-5 * float(sound.abs().max()))
    assert not torch.allclose(own, sound, atol=1e-2 * float(sound.abs().max()))


def test_fused_kernels_are_differentiated_by_their_own_gradient():
    network = rc.build_model("matrix-capsnet-small", classes=3, channels=1, size=20, types=(2, 2, 2), filters=4).eval()
    images = torch.rand(2, 1, 20, 20, generator=torch.Generator().manual_seed(2))
    sound = by_autograd(network, images)
    found = rebuilt(lambda x: network(x.detach()), images=images)
    assert torch.allclose(found, sound, rtol=1e-3, atol=1e-4 * float(sound.abs().max()))
