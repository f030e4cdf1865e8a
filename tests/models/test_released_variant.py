"""`variant = "released"`: the network of the authors' released code instead of the paper's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import robustcaps as rc
from robustcaps.capsules.losses import released_spread_margin
from robustcaps.models.matrix_capsnet import MatrixCapsNet, released_offsets


def build(**options: Any) -> MatrixCapsNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.build_model("matrix-capsnet-small", classes=5, channels=2, size=32, variant="released", **options)
    assert isinstance(model, MatrixCapsNet)
    return model


def test_it_sets_every_option_of_the_released_code():
    model = build()
    assert [type(part).__name__ for part in model.stem] == ["Conv2d", "ReLU"], "no batch normalisation"
    torch.testing.assert_close(model.stem[0].bias, torch.full((64,), 0.1))
    for layer in (model.first, model.second):
        rules = layer.rules
        assert (rules.competition, rules.start, rules.schedule) == ("type", "types", "released")
        assert (rules.mean_momentum, rules.variance_floor, rules.iterations) == (0.1, 5e-4, 3)
        assert layer.transforms.std().item() == pytest.approx(0.3 * 0.88, rel=0.05)  # truncated at two deviations
        torch.testing.assert_close(layer.beta_u, torch.full((16,), 0.25 * (math.log(2 * math.pi) + 1)))
        torch.testing.assert_close(layer.beta_a, torch.full((16,), -1250.0))
    classes = model.class_capsules
    assert classes.rules.competition == "field" and classes.rules.mean_momentum == 0.1
    assert classes.transforms.std().item() == pytest.approx(0.01 * 0.88, rel=0.1)
    torch.testing.assert_close(classes.beta_a, torch.full((5,), -2500.0))
    lambdas = model.first.inverse_temperatures
    torch.testing.assert_close(lambdas, torch.tensor([0.02 * (1 - 0.95**t) for t in (1, 2, 3)]))
    torch.testing.assert_close(classes.inverse_temperatures, lambdas / 4)


def test_windows_compete_as_if_the_stride_were_one():
    model = build()
    assert model.first.wiring.groups is not None
    positions = int(model.first.windows.shape[0] ** 0.5)
    assert len(model.first.wiring.rivals) == (positions + 2) ** 2


def test_single_options_can_be_taken_back():
    model = build(competition="field", mean_momentum=0.0)
    assert model.first.rules.competition == "field" and model.first.wiring.groups is None
    assert model.first.rules.mean_momentum == 0.0 and model.first.rules.variance_floor == 5e-4


def test_primary_activations_have_a_fixed_bias():
    model, features = build(), torch.zeros(1, 64, 3, 3)
    poses, activations = model.primary(features)
    torch.testing.assert_close(activations, torch.full_like(activations, 1 / (1 + math.e)))
    assert (poses == 0).all() and not [name for name, _ in model.primary.named_parameters() if "bias" in name]


def test_coordinates_are_pixels_from_the_centre_in_components_0_and_1():
    offsets = released_offsets(4, 32).view(4, 4, 16)
    torch.testing.assert_close(offsets[0, :, 0], (torch.arange(4) * 4 + 8 - 16) / 100)  # the column
    torch.testing.assert_close(offsets[0, :, 1], torch.full((4,), (8 - 16) / 100))  # the row
    assert (offsets[..., 2:] == 0).all()


def test_the_initial_values_do_not_depend_on_data():
    model, before = build(), build().state_dict()
    model.initialise(torch.rand(8, 2, 32, 32))
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], msg=name)
    rates = [group["lr"] for group in model.parameter_groups(0.002)]
    assert max(rates) == pytest.approx(0.002 * 2500), "beta_a moves as far as b_act of the released code"


def test_its_convolutional_routing_is_sharp_from_the_first_step():
    images = torch.rand(4, 2, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        statistics = build().eval().routing_statistics(images)
    entropies = {layer: float(each["entropy"].mean()) for layer, each in statistics.items()}
    assert max(entropies["first"], entropies["second"]) < 0.5
    assert entropies["classes"] > 0.95, "class votes start near 0"


def test_the_margin_stays_low_for_a_long_time():
    assert released_spread_margin(0.0) == pytest.approx(0.2 + 0.79 / (1 + math.exp(4)))
    assert released_spread_margin(0.4) == pytest.approx(0.2 + 0.79 / 2)
    assert released_spread_margin(1.0) == pytest.approx(0.988, abs=1e-3)


def test_it_learns_a_tiny_batch():
    model = build()
    images, labels = torch.rand(10, 2, 32, 32, generator=torch.Generator().manual_seed(2)), torch.arange(10) % 5
    optimizer = torch.optim.Adam(model.parameter_groups(0.003))
    losses = []
    for _ in range(160):
        loss = model.training_loss(images, labels, progress=0.0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert torch.isfinite(torch.tensor(losses)).all() and losses[-1] < 0.7 * losses[0]
