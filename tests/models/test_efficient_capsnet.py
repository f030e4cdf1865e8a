from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import robustcaps as rc
from robustcaps.capsules.routing import exponential_length_logit, exponential_squash, exponential_squashed_length
from robustcaps.errors import UserError
from robustcaps.models.efficient_capsnet import EfficientCapsNet
from robustcaps.models.reconstruction import decoder_of

PUBLISHED = 161_824
"""Parameters on MNIST, without the decoder."""
CLASSES, SIZE = 4, 20


def build(*, classes: int = CLASSES, size: int = SIZE, reconstruction: float = 0.0005) -> EfficientCapsNet:
    shape = {"classes": classes, "channels": 1, "size": size}
    model = rc.build_model("efficient-capsnet", **shape, reconstruction=reconstruction)
    assert isinstance(model, EfficientCapsNet)
    return model


def draw_images(n: int = 4, size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return F.interpolate(torch.rand(n, 1, 5, 5, generator=generator), size=size, mode="bilinear")


def test_parameters_are_the_published_number():
    model = build(classes=10, size=28)
    decoder = sum(parameter.numel() for parameter in model.decoder.parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) - decoder == PUBLISHED
    assert decoder == 160 * 512 + 512 + 512 * 1024 + 1024 + 1024 * 784 + 784


@pytest.mark.parametrize("size", [11, 20, 28, 32])
def test_shapes(size):
    model, images = build(size=size).eval(), draw_images(3, size)
    output = model.classify(images)
    assert output.logits.shape == output.scores.shape == (3, CLASSES)
    assert output.poses is not None
    assert output.poses.shape == (3, CLASSES, 16)
    assert model.votes(images).shape == (3, CLASSES, 16, 16)
    assert model.reconstruct(images).shape == images.shape
    assert decoder_of(model) is model


def test_logits_are_the_logits_of_the_lengths():
    output = build().eval().classify(draw_images())
    assert output.poses is not None
    torch.testing.assert_close(output.scores, output.poses.norm(dim=2))
    torch.testing.assert_close(output.logits, torch.logit(output.scores), rtol=1e-4, atol=1e-4)


def test_votes_without_routing():
    model, images = build().eval(), draw_images().requires_grad_()
    unrouted, routed = model.vote_logits(images)
    torch.testing.assert_close(routed, model(images))
    lengths = exponential_squashed_length(model.votes(images).sum(dim=2) / CLASSES)
    torch.testing.assert_close(unrouted, lengths.log(), rtol=1e-4, atol=1e-4)
    assert unrouted.requires_grad
    assert not routed.requires_grad


def test_every_parameter_is_trained():
    model = build()
    model.training_loss(draw_images(), torch.arange(4)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_reconstruction_error_is_part_of_the_loss():
    images, labels = draw_images(), torch.arange(4)
    model, bare = build().eval(), build(reconstruction=0).eval()
    error = (model.reconstruct(images, labels) - images).square().sum(dim=(1, 2, 3))
    difference = model.training_loss(images, labels) - bare.training_loss(images, labels)
    torch.testing.assert_close(difference, 0.0005 * error, rtol=1e-4, atol=1e-6)


def test_training_learns_a_tiny_batch():
    model, images, labels = build().train(), draw_images(), torch.arange(4)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        loss = model.training_loss(images, labels).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UserError, match="10x10 are too small; they must be at least 11x11"):
        build(size=10)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
def test_squash_bounds_the_length_and_its_logit_does_not_saturate(scale):
    s = scale * torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v, length = exponential_squash(s), s.norm(dim=1)
    torch.testing.assert_close(v.norm(dim=1), 1 - (-length).exp())
    torch.testing.assert_close(v.norm(dim=1), exponential_squashed_length(s))
    torch.testing.assert_close(F.cosine_similarity(v, s), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(exponential_length_logit(s), torch.log(torch.expm1(length)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("function", [exponential_squash, exponential_squashed_length, exponential_length_logit])
def test_squash_gradients(function):
    s = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(function, s)
    empty = torch.zeros(3, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(empty).sum(), empty)
    assert torch.isfinite(function(empty)).all()
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_compiled_model_agrees():
    model, images = build().eval(), draw_images()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-4)


def test_routing_can_be_inspected():
    model, images = build().eval(), draw_images()
    (uniform,) = model.interventions
    assert not torch.allclose(model.intervened_logits(images, uniform), model(images), atol=1e-5)
    statistics = model.routing_statistics(images)["classes"]
    assert ((statistics["entropy"] > 0) & (statistics["entropy"] < 1)).all()
    torch.testing.assert_close(statistics["activations"], model.scores(images))
