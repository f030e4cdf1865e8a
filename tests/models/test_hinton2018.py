from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from robustcaps.errors import UserError
from robustcaps.models.hinton2018 import load_released_network
from robustcaps.models.matrix_capsnet import released_offsets
from robustcaps.models.tensorflow_checkpoint import open_checkpoint
from robustcaps.models.zoo import build_model
from tests.models.released_checkpoint import CHANNELS, CLASSES, FILTERS, TYPES, released_variables
from tests.tensorflow_files import write_checkpoint


def load(folder, variables):
    write_checkpoint(folder / "model.ckpt-1", variables)
    return load_released_network(open_checkpoint(folder))


@torch.no_grad()
def built_directly(variables):
    """The network with the numbers put into it one by one, as the released code uses them."""
    options = {"variant": "released", "filters": FILTERS, "types": TYPES}
    model = build_model("matrix-capsnet", classes=CLASSES, channels=CHANNELS, size=32, seed=3, **options).eval()
    v = {name: torch.tensor(array) for name, array in variables.items()}
    for f in range(FILTERS):
        model.stem[0].bias[f] = v["conv1/biases"][f]
        for c in range(CHANNELS):
            model.stem[0].weight[f, c] = v["conv1/weights"][:, :, c, f]
    kernels = torch.cat([v["conv_capsule1/weights"], v["conv_capsule1/conv_capsule1_act/weights"]], dim=3)[0, 0]
    for t in range(TYPES[0]):
        model.primary.activation.weight[t, :, 0, 0] = kernels[:, 17 * t + 16]
        for h in range(16):
            model.primary.pose.weight[16 * t + h, :, 0, 0] = kernels[:, 17 * t + h]
    scopes = {"convCaps0": model.first, "convCaps1": model.second, "capsule2": model.class_capsules}
    for scope, layer in scopes.items():
        weights = v[f"{scope}/weights"]
        parents = weights.shape[-1] // 4
        for i in range(len(weights)):
            for j in range(parents):
                for c in range(4):
                    column = weights[i, ..., c * parents + j]  # (4,) or (3, 3, 4)
                    if scope == "capsule2":
                        layer.transforms[i, j, :, c] = column
                    else:
                        layer.transforms[:, i, j, :, c] = column.reshape(9, 4)
        layer.beta_u.copy_(v[f"{scope}/sigma_biases"].flatten() * (math.log(2 * math.pi) + 1) / 2)
        layer.beta_a.copy_(-2500 * v[f"{scope}/activation_biases"].flatten())
    return model


@pytest.fixture(scope="module")
def images():
    return torch.rand(3, CHANNELS, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_network_computes_what_one_with_the_same_numbers_does(tmp_path, images):
    variables = released_variables()
    network = load(tmp_path, variables)
    assert network.options == {"variant": "released", "filters": FILTERS, "types": TYPES}
    assert (network.channels, network.classes, network.unused) == (CHANNELS, CLASSES, ())
    assert network.variables["class_capsules.sigma_biases"] == "capsule2/sigma_biases"
    found, expected = network.model(images), built_directly(variables)(images)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.std(dim=0).min() > 1e-3  # images do differ
    assert not network.model.training and not any(p.requires_grad for p in network.model.parameters())


def test_primary_capsules_are_interleaved_as_in_the_released_code(tmp_path, images):
    """Of 17 consecutive channels of both kernels together, 16 are the pose and the last is the activation."""
    variables = released_variables()
    primary = load(tmp_path, variables).model.primary
    features = torch.rand(2, FILTERS, 14, 14, generator=torch.Generator().manual_seed(1))
    names = ("conv_capsule1/weights", "conv_capsule1/conv_capsule1_act/weights")
    kernel = torch.cat([torch.tensor(variables[name]) for name in names], dim=3).permute(3, 2, 0, 1)
    capsules = F.conv2d(features, kernel).reshape(2, TYPES[0], 17, 14 * 14)
    poses, activations = primary(features)
    torch.testing.assert_close(poses, capsules[:, :, :16].permute(0, 3, 1, 2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(activations, (capsules[:, :, 16] - 1).sigmoid().transpose(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [28, 32])
def test_coordinates_are_averaged_and_swapped_by_every_convolution(size):
    grid = torch.tensor(np.mgrid[-size // 2 : (size + 1) // 2, -size // 2 : (size + 1) // 2] / 100).float()
    for kernel, stride in ((5, 2), (3, 2), (3, 1)):
        grid = F.avg_pool2d(grid, kernel, stride).flip(0)
    side = grid.shape[-1]
    offsets = released_offsets(side, size).view(side, side, 16)
    torch.testing.assert_close(offsets[..., :2], grid.permute(1, 2, 0))
    assert not offsets[..., 2:].any()


def test_moving_averages_are_preferred(tmp_path, images):
    last, averaged = released_variables(seed=0), released_variables(seed=1)
    both = {**last, **{f"{n}/ExponentialMovingAverage": a for n, a in averaged.items() if "Adam" not in n and a.ndim}}
    network = load(tmp_path, both)
    assert network.variables["first.weights"] == "convCaps0/weights/ExponentialMovingAverage"
    torch.testing.assert_close(network.model(images), built_directly(averaged)(images), rtol=1e-5, atol=1e-5)


def test_names_of_scopes_do_not_matter_but_their_order_does(tmp_path, images):
    variables = released_variables(types=(3, 3, 3))
    words = {"convCaps0": "net/layer9", "convCaps1": "net/layer10", "capsule2": "net/classes", "conv1": "net/a"}
    renamed = {re.sub("^[^/]+", lambda m: words.get(m[0], m[0]), name): array for name, array in variables.items()}
    plain, other = load(tmp_path, variables), load(tmp_path, renamed)
    assert other.variables["first.weights"] == "net/layer9/weights"
    assert torch.equal(plain.model(images), other.model(images))


def test_other_variables_are_reported(tmp_path):
    network = load(tmp_path, released_variables(**{"decoder/weights": np.zeros((3, 3), np.float32)}))
    assert network.unused == ("decoder/weights",)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"conv1/weights": None}, "stem.weights: 0 variables instead of 1"),
        ({"conv2/weights": np.zeros((5, 5, 6, 6), np.float32)}, "stem.weights: 2 variables instead of 1"),
        ({"conv1/biases": None}, "stem.biases: 0 variables"),
        ({"conv_capsule1/weights": None}, "primary.poses: 0 variables"),
        ({"convCaps1/weights": None}, "first.weights: 1 variables instead of 2"),
        ({"convCaps0/sigma_biases": None}, "first.sigma_biases: 0 variables"),
        ({"convCaps0/sigma_biases_2": np.zeros((3,), np.float32)}, "first.sigma_biases: 2 variables"),
        ({"capsule2/weights": np.zeros((4, 3, 20), np.float32)}, "class_capsules.weights: .* does not end in"),
        ({"capsule2/weights": np.zeros((9, 4, 20), np.float32)}, "class_capsules.weights: .* does not fit 4 child"),
        ({"convCaps0/weights": np.zeros((2, 5, 5, 4, 12), np.float32)}, "first.weights: .* is not a 3x3 kernel"),
        (
            {"convCaps0/gain": np.zeros((7,), np.float32)},
            "convCaps0/gain .7. is a variable that the released code does",
        ),
    ],
)
def test_another_network_is_refused_with_a_list_of_its_variables(tmp_path, changes, problem):
    variables = {name: array for name, array in released_variables(**changes).items() if array is not None}
    with pytest.raises(UserError, match=problem) as caught:
        load(tmp_path, variables)
    text = str(caught.value)
    assert "The checkpoint has: " in text and "conv_capsule1/conv_capsule1_act/weights (1, 1, 6, 2)" in text
    assert "Adam" not in text and "\n" not in text


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    variables = released_variables()
    variables["conv1/biases"][0] = np.nan
    with pytest.raises(UserError, match="variable 'conv1/biases' contains NaN"):
        load(tmp_path, variables)
