"""Vital signs of routing: entropies, interventions, and what counts as alive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import robustcaps as rc
from robustcaps.capsules.interventions import CONSTANT_SIGMA, UNIFORM, Intervention
from robustcaps.errors import UserError
from robustcaps.introspection.routing_status import routing_status
from robustcaps.introspection.vitals import NETWORK, measure_routing, summarise_routing

TYPES = {"filters": 4, "types": (2, 3, 3)}


def build(name: str = "matrix-capsnet-small", **options: Any) -> torch.nn.Module:
    options = {**(TYPES if name.startswith("matrix") else {}), **options}
    return rc.build_model(name, classes=3, channels=1, size=20, **options).eval()


def samples(n: int = 5) -> rc.Data:
    images = torch.rand(n, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    return rc.Data(images, torch.arange(n) % 3, ("a", "b", "c"), name="noise")


def test_a_network_has_rows_for_every_layer_and_intervention():
    seen = []
    rows = measure_routing(build(), samples(20), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(16, 20), (20, 20)]
    counts = rows.groupby(["layer", "intervention"])["index"].nunique().to_dict()
    interventions = ["none", "uniform assignments", "constant sigma", "1 iteration", "2 iterations"]
    assert counts == {
        **{(layer, ""): 20 for layer in ("first", "second", "classes")},
        **{(NETWORK, name): 20 for name in interventions},
    }
    layers = rows[rows["layer"] != NETWORK]
    assert layers["entropy"].between(0, 1 + 1e-6).all() and (layers["sigma_ratio"] >= 1).all()
    assert not rows.loc[rows["intervention"] == "none", "changed"].any()


def test_the_definition_with_no_intervention_gives_the_network_itself():
    model, images = build(variance_floor=0.01, vote_std=0.3), samples().images
    unchanged = Intervention("all iterations", iterations=3)
    with torch.no_grad():
        torch.testing.assert_close(model.intervened_logits(images, unchanged), model(images), rtol=1e-4, atol=1e-4)
        assert (model.intervened_logits(images, UNIFORM) - model(images)).abs().max() > 1e-3


def test_uniform_assignments_are_one_iteration_at_the_last_lambda():
    layer = build(schedule="rising").class_capsules
    children = torch.randn(2, 4, 3, 16), torch.rand(2, 4, 3)
    with torch.no_grad():
        (uniform,) = layer.steps(*children, UNIFORM)
        (cut,) = layer.steps(*children, Intervention("1 iteration", iterations=1))
    torch.testing.assert_close(uniform.parents.logits, 3 * cut.parents.logits)  # lambda rises from 1/3 to 1
    torch.testing.assert_close(uniform.assignments, torch.full_like(uniform.assignments, 1 / 3))


def test_with_constant_sigma_only_the_support_of_a_capsule_decides():
    model, images = build(), samples().images
    with torch.no_grad():
        (step,) = model.routing_steps(images[:1], Intervention("", constant_sigma=True, iterations=1))["classes"]
        layer = model.class_capsules
        cost = layer.beta_u * 16 + 8 * step.parents.variance.log().mean()
        expected = layer.inverse_temperature * (layer.beta_a - step.parents.support * cost)
    torch.testing.assert_close(step.parents.logits, expected)
    assert CONSTANT_SIGMA in model.interventions
    assert CONSTANT_SIGMA not in build(activation="mixture").interventions


def test_dynamic_routing_has_vital_signs_without_sigma():
    rows = measure_routing(build("vector-capsnet-small"), samples())
    assert set(rows["intervention"]) == {"", "none", "uniform assignments", "2 iterations"}
    assert "sigma_ratio" not in rows and rows.loc[rows["layer"] == "classes", "entropy"].between(0.5, 1 + 1e-6).all()
    one = build("vector-capsnet-small", iterations=1)
    assert np.allclose(measure_routing(one, samples()).query("layer == 'classes'")["entropy"], 1)


def test_dead_capsules_are_those_that_no_sample_activates():
    model = build()
    with torch.no_grad():
        model.second.beta_a[0] = -1e6
    rows = measure_routing(model, samples())
    assert rows.groupby("layer")["dead"].first()[["first", "second"]].tolist() == [0.0, pytest.approx(1 / 3)]


def test_a_model_without_routing_is_refused():
    with pytest.raises(UserError, match="no routing that can be inspected"):
        measure_routing(build("cnn-small"), samples())
    assert summarise_routing(build("cnn-small"), samples()) is None


@pytest.mark.parametrize(
    ("entropies", "changed", "status"),
    [
        ({"first": 0.6, "second": 0.8, "classes": 0.5}, 0.2, "alive"),
        ({"first": 0.6, "second": 0.81, "classes": 0.5}, 0.9, "soft"),
        ({"first": 0.6, "second": 0.8, "classes": 0.51}, 0.9, "soft"),
        ({"first": 0.1, "classes": 0.1}, 0.19, "soft"),
        ({"first": 0.1, "classes": 0.1}, 0.04, "inert"),
        ({"classes": 0.99}, 0.03, "inert"),
    ],
)
def test_when_routing_counts_as_alive(entropies, changed, status):
    assert routing_status(entropies, changed) == status


def test_the_summary_is_what_cards_record():
    vitals = summarise_routing(build(), samples())
    assert vitals.n == 5 and list(vitals.layers) == ["first", "second", "classes"]
    assert set(vitals.layers["first"]) == {"entropy", "sigma_ratio", "dead"}
    entropies = {layer: each["entropy"] for layer, each in vitals.layers.items()}
    assert vitals.status == routing_status(entropies, vitals.changed["uniform assignments"])
