from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier, TrainingRecipe
from robustcaps.models.matrix_capsnet import MatrixCapsNet, coordinate_offsets
from robustcaps.models.normalise import Standardise
from robustcaps.models.vector_capsnet import VectorCapsNet
from robustcaps.options import options_schema, validate_options
from robustcaps.registry import MODELS

ZOO = ["cnn", "cnn-small", "matrix-capsnet", "matrix-capsnet-small", "vector-capsnet", "vector-capsnet-small"]
CAPSULES = [name for name in ZOO if "capsnet" in name]
SIZE, CLASSES, CHANNELS = 20, 4, 2
"""Small images keep these tests quick; every family takes them."""


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def build(
    name: str, *, classes: int = CLASSES, channels: int = CHANNELS, size: int = SIZE, **options: Any
) -> Classifier:
    factory = MODELS.entry(name).factory
    checked = validate_options(factory, options, where=name, reserved=frozenset({"classes", "channels", "size"}))
    model = factory(classes=classes, channels=channels, size=size, **checked)
    assert isinstance(model, Classifier)
    return model


def build_ready(name: str, **options: Any) -> Classifier:
    """Build a model whose answers differ between images, as a trained one's do, in eval mode."""
    model = build(name, **options)
    if isinstance(model, MatrixCapsNet):
        model.initialise(draw_images(8, size=model.size))
    return model.eval()


def draw_images(n: int = 4, size: int = SIZE) -> Tensor:
    """Smooth random images."""
    return F.interpolate(torch.rand(n, CHANNELS, 5, 5), size=size, mode="bilinear")


def count(model: Classifier) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_zoo_is_registered():
    assert set(ZOO) <= set(MODELS.names())


@pytest.mark.parametrize(
    ("name", "classes", "size", "expected"),
    [
        ("cnn", 5, 32, 4.2e6),
        ("vector-capsnet", 10, 28, 8.2e6),
        ("matrix-capsnet", 5, 32, 310e3),
        ("matrix-capsnet-small", 5, 32, 68e3),
    ],
)
def test_parameter_counts_are_the_papers(name, classes, size, expected):
    assert count(build(name, classes=classes, channels=1, size=size)) == pytest.approx(expected, rel=0.03)


def test_small_cnn_matches_the_small_capsule_network():
    capsules, cnn = (
        count(build(name, classes=5, channels=1, size=32)) for name in ("matrix-capsnet-small", "cnn-small")
    )
    assert cnn == pytest.approx(capsules, rel=0.03)


@pytest.mark.parametrize("family", ["cnn", "matrix-capsnet", "vector-capsnet"])
def test_variants_have_the_same_options_and_a_summary_of_their_own(family):
    full, small = (MODELS.entry(name) for name in (family, f"{family}-small"))
    assert list(options_schema(full.factory).model_fields) == list(options_schema(small.factory).model_fields)
    assert full.built_in and small.built_in
    assert full.help and small.help and full.help != small.help


@pytest.mark.parametrize("name", ZOO)
def test_outputs(name):
    model = build_ready(name)
    images = draw_images()
    output = model.classify(images)
    assert output.logits.shape == output.scores.shape == (4, CLASSES)
    assert torch.isfinite(output.logits).all()
    assert 0 <= output.scores.min() <= output.scores.max() <= 1
    assert torch.equal(model(images), output.logits)
    assert torch.equal(model.scores(images), output.scores)
    assert isinstance(model.recipe, TrainingRecipe)


@pytest.mark.parametrize("name", ZOO)
def test_the_highest_score_is_the_highest_logit(name):
    output = build_ready(name).classify(draw_images(16))
    best = output.scores.topk(2, dim=1)
    clear = best.values[:, 0] > best.values[:, 1]
    assert clear.any()
    assert torch.equal(output.logits.argmax(dim=1)[clear], best.indices[clear, 0])


@pytest.mark.parametrize("name", ZOO)
def test_a_sample_does_not_depend_on_its_neighbours(name):
    model = build_ready(name)
    images = draw_images(7)
    together = model(images)
    assert not torch.allclose(together[1:2], together[2:3], rtol=1e-3, atol=1e-4)
    for alone in (model(images[2:3]), model(images[[2, 5]])[:1], model(images.flip(0))[4:5]):
        torch.testing.assert_close(alone, together[2:3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ZOO)
def test_evaluation_is_deterministic_and_training_is_jittered(name):
    model, images = build_ready(name), draw_images()
    assert not torch.equal(model.train()(images), model(images))
    assert torch.equal(model.eval()(images), model(images))


@pytest.mark.parametrize("normalise", ["image", "none"])
@pytest.mark.parametrize("name", ZOO)
def test_gradients_reach_every_image(name, normalise):
    model, images = build_ready(name, normalise=normalise), draw_images().requires_grad_()
    loss = F.cross_entropy(model(images), torch.arange(4), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, images)
    assert torch.isfinite(gradient).all()
    assert (gradient.flatten(1).abs().amax(dim=1) > 0).all()


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ZOO)
def test_constant_images_are_finite_with_finite_gradients(name, value):
    model, images = build_ready(name), torch.full((2, CHANNELS, SIZE, SIZE), value, requires_grad=True)
    logits = model(images)
    (gradient,) = torch.autograd.grad(logits.square().sum(), images)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("name", ZOO)
def test_training_learns_a_tiny_batch(name):
    model, images, labels = build(name).train(), draw_images(), torch.arange(4)
    if isinstance(model, MatrixCapsNet):
        model.initialise(images)
        optimiser = torch.optim.Adam(model.parameter_groups(3e-3))
    else:
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        loss = model.training_loss(images, labels)
        assert loss.shape == (4,)
        optimiser.zero_grad()
        loss.sum().backward()
        optimiser.step()
        losses.append(loss.sum().item())
    assert sum(losses[-3:]) / 3 < 0.95 * losses[0]


@pytest.mark.parametrize("name", ZOO)
def test_images_that_are_too_small_are_refused(name):
    with pytest.raises(UserError, match="3x3 are too small"):
        build(name, size=3)


def test_a_mixture_needs_an_e_step():
    with pytest.raises(UserError, match="'mixture' needs at least 2 iterations"):
        build("matrix-capsnet-small", activation="mixture", iterations=1)


@pytest.mark.parametrize("name", CAPSULES)
def test_votes_are_what_the_class_capsules_average(name):
    """With one iteration each pose is the weighted mean vote, so it lies between the smallest and the largest vote."""
    model = build_ready(name, iterations=1)
    assert isinstance(model, CapsuleClassifier)
    images = draw_images()
    votes, poses = model.votes(images), model.classify(images).poses
    assert poses is not None
    assert votes.shape[:2] == poses.shape[:2] == (4, CLASSES)
    assert votes.shape[3] == poses.shape[2] == 16
    if isinstance(model, MatrixCapsNet):
        assert (votes.amin(dim=2) <= poses + 1e-6).all()
        assert (poses <= votes.amax(dim=2) + 1e-6).all()
    else:
        torch.testing.assert_close(F.normalize(poses, dim=2), F.normalize(votes.mean(dim=2), dim=2))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("matrix-capsnet-small", {"iterations": 1}),
        ("matrix-capsnet-small", {"competition": "position"}),
        ("matrix-capsnet-small", {"coordinates": False}),
        ("matrix-capsnet-small", {"variance_floor": 0.5}),
        ("matrix-capsnet-small", {"types": [4, 4, 4]}),
        ("vector-capsnet-small", {"iterations": 1}),
        ("vector-capsnet-small", {"update": "assign"}),
        ("vector-capsnet-small", {"transforms": "shared"}),
        ("vector-capsnet-small", {"normalise": "none"}),
        ("cnn-small", {"hidden": 5}),
    ],
)
def test_options_change_the_model(name, options):
    images = draw_images(size=24)

    def logits(**given: Any) -> Tensor:
        torch.manual_seed(1)
        return build_ready(name, size=24, **given).classify(images).logits

    assert torch.equal(logits(), logits())
    assert not torch.allclose(logits(), logits(**options), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", ["spread", "margin", "cross-entropy"])
def test_matrix_losses(loss):
    model, images, labels = build_ready("matrix-capsnet-small", loss=loss), draw_images(), torch.arange(4)
    value = model.training_loss(images, labels, progress=0.5)
    output = model.classify(images)
    for n in range(4):
        a, t = output.scores[n], int(labels[n])
        others = [k for k in range(CLASSES) if k != t]
        expected = {
            "spread": sum(max(0.0, 0.9 - (a[t] - a[k]).item()) ** 2 for k in others),
            "margin": max(0.0, 0.9 - a[t].item()) ** 2 + 0.5 * sum(max(0.0, a[k].item() - 0.1) ** 2 for k in others),
            "cross-entropy": -output.logits[n].log_softmax(dim=0)[t].item(),
        }
        assert value[n].item() == pytest.approx(expected[loss], rel=1e-4)


def test_spread_margin_grows_with_progress():
    model, images, labels = build_ready("matrix-capsnet-small"), draw_images(), torch.arange(4)
    early, late = (model.training_loss(images, labels, progress=p) for p in (0.0, 1.0))
    assert (early < late).all()


def test_matrix_initialisation_is_layer_by_layer_and_leaves_the_mode_alone():
    model = build("matrix-capsnet-small")
    assert isinstance(model, MatrixCapsNet)
    images = draw_images(32)
    model.initialise(images)
    assert all(module.training for module in model.modules())
    model.normaliser.eval()
    logits = model(images)
    assert logits.mean().item() == pytest.approx(0, abs=0.3)
    assert logits.std().item() < 0.6
    grouped = [parameter for group in model.parameter_groups(1e-3) for parameter in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, model.parameters()))


def test_coordinates_are_the_centres_of_the_receptive_fields():
    """At 32x32 the 4x4 capsules see pixels 0-16, 4-20, 8-24 and 12-28; row and column go to the right-hand column."""
    offsets = coordinate_offsets(4, 32).view(4, 4, 4, 4)
    centres = torch.tensor([8.5, 12.5, 16.5, 20.5]) / 32
    torch.testing.assert_close(offsets[:, :, 0, 3], centres[:, None].expand(4, 4))
    torch.testing.assert_close(offsets[:, :, 1, 3], centres[None].expand(4, 4))
    assert offsets.count_nonzero() == 32


@pytest.mark.parametrize("place", [(0, 0), (3, 0), (1, 2)])
def test_receptive_fields_are_where_coordinates_say(place):
    """The pixels that move a capsule's pose lie in the 17x17 field around its coordinates."""
    row, column = place
    model = build("matrix-capsnet-small", size=32, normalise="none", iterations=1).eval()
    assert isinstance(model, MatrixCapsNet)
    images = torch.rand(1, CHANNELS, 32, 32, requires_grad=True)
    pose = model._below_classes(images).poses[0, row * 4 + column]
    (gradient,) = torch.autograd.grad(pose.square().sum(), images)
    rows, columns = gradient[0].abs().sum(dim=0).nonzero().T
    centre = coordinate_offsets(4, 32).view(4, 4, 16)[row, column] * 32
    assert (rows.min() + rows.max() + 1) / 2 == centre[3]
    assert (columns.min() + columns.max() + 1) / 2 == centre[7]
    assert rows.max() - rows.min() == 16


def test_vector_logits_are_the_logits_of_the_lengths():
    output = build("vector-capsnet-small").eval().classify(draw_images())
    assert output.poses is not None
    torch.testing.assert_close(output.scores, output.poses.norm(dim=2))
    torch.testing.assert_close(output.logits, torch.logit(output.scores), rtol=1e-4, atol=1e-4)


def test_decoder_sees_the_chosen_capsule_only():
    model, images, labels = build("vector-capsnet-small").eval(), draw_images(), torch.tensor([0, 1, 2, 3])
    assert isinstance(model, VectorCapsNet)
    poses = model.classify(images).poses
    assert poses is not None
    others = poses + (1 - torch.eye(CLASSES)).unsqueeze(2)
    decoded = model.decode(poses, labels)
    assert decoded.shape == images.shape
    assert 0 <= decoded.min() <= decoded.max() <= 1
    assert torch.equal(decoded, model.decode(others, labels))
    assert torch.equal(decoded, model.reconstruct(images, labels))
    assert torch.equal(model.reconstruct(images), model.reconstruct(images, model(images).argmax(dim=1)))


def test_reconstruction_error_is_part_of_the_vector_loss():
    images, labels = draw_images(), torch.arange(4)
    with_decoder, without = build("vector-capsnet-small"), build("vector-capsnet-small", reconstruction=0)
    without.load_state_dict(with_decoder.state_dict())
    model, bare = with_decoder.eval(), without.eval()
    assert isinstance(model, VectorCapsNet)
    error = (model.reconstruct(images, labels) - images).square().sum(dim=(1, 2, 3))
    difference = model.training_loss(images, labels) - bare.training_loss(images, labels)
    torch.testing.assert_close(difference, 0.0005 * error, rtol=1e-4, atol=1e-6)


def test_standardised_images_have_mean_zero_and_variance_one():
    standard = Standardise().eval()(draw_images())
    torch.testing.assert_close(standard.mean(dim=(1, 2, 3)), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(standard.var(dim=(1, 2, 3), correction=0), torch.ones(4), rtol=1e-2, atol=0)


def test_jitter_is_one_brightness_and_contrast_per_image():
    images = draw_images()
    plain, jittered = Standardise().eval()(images), Standardise().train()(images)
    contrast = jittered.std(dim=(1, 2, 3)) / plain.std(dim=(1, 2, 3))
    brightness = jittered.mean(dim=(1, 2, 3))
    assert (contrast - 1).abs().max() <= 0.25
    assert brightness.abs().max() <= 0.25 + 1e-5
    assert len(set(contrast.tolist())) == len(set(brightness.tolist())) == 4
    expected = contrast[:, None, None, None] * plain + brightness[:, None, None, None]
    torch.testing.assert_close(jittered, expected, rtol=1e-4, atol=1e-4)
