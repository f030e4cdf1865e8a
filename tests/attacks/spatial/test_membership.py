"""Attacks that claim transformations they did not make, or may not make: each is caught by its name."""

from __future__ import annotations

import pytest
import torch

import robustcaps as rc
from robustcaps.attacks.spatial.budgets import TransformedImages
from robustcaps.attacks.spatial.viewpoint import VIEWS


@pytest.fixture(scope="module")
def model():
    return rc.load_model("cnn-small")


@pytest.fixture(scope="module")
def data():
    return rc.load_data("toys", skip=1, limit=5)


def honest(images, budget):
    low, high = budget.limits(images)
    parameters = 0.5 * high + 0.25 * low
    return TransformedImages(budget.transform(images, parameters), parameters)


def without_parameters(images, budget):
    return honest(images, budget).images


def other_image(images, budget):
    return TransformedImages(1 - images, honest(images, budget).parameters)


def slightly_other_image(images, budget):
    claim = honest(images, budget)
    return TransformedImages((claim.images + 1e-3).clamp(0, 1), claim.parameters)


def beyond_eps(images, budget):
    parameters = 1.5 * budget.limits(images)[1]
    return TransformedImages(budget.transform(images, parameters), parameters)


def beyond_eps_claimed_small(images, budget):
    parameters = 1.5 * budget.limits(images)[1]
    return TransformedImages(budget.transform(images, parameters), parameters / 2)


def nan_parameters(images, budget):
    claim = honest(images, budget)
    return TransformedImages(claim.images, claim.parameters * torch.nan)


def nan_images(images, budget):
    claim = honest(images, budget)
    return TransformedImages(claim.images * torch.nan, claim.parameters)


def too_few_parameters(images, budget):
    claim = honest(images, budget)
    return TransformedImages(claim.images, claim.parameters[:, :1])


def wider_range(images, budget):
    object.__setattr__(budget, "eps", 8 * budget.eps)
    return honest(images, budget)


def shuffled(images, budget):
    claim = honest(images, budget)
    return TransformedImages(claim.images.roll(1, 0), claim.parameters)


def another_object(images, budget):
    budget.factors["instance"] = (budget.factors["instance"] + 1) % 10
    return honest(images, budget)


def forged_cache(images, budget):
    claim = honest(images, budget)
    for key in VIEWS.views:
        VIEWS.views[key] = torch.full_like(VIEWS.views[key], 0.5)
    forged = TransformedImages(budget.transform(images, claim.parameters), claim.parameters)
    VIEWS.views.clear()
    VIEWS.size = 0
    return forged


BOTH = {
    without_parameters: "no-parameters",
    other_image: "other-image",
    slightly_other_image: "other-image",
    beyond_eps: "outside-range",
    beyond_eps_claimed_small: "other-image",
    nan_parameters: "outside-range",
    nan_images: "not-finite",
    too_few_parameters: "no-parameters",
    wider_range: "outside-range",
    shuffled: "other-image",
}
CHEATS = [
    *((norm, cheat, name) for norm in ("affine", "viewpoint") for cheat, name in BOTH.items()),
    *(("viewpoint", cheat, "other-image") for cheat in (another_object, forged_cache)),
]


def attack_with(propose, norm):
    class Plugin(rc.Attack):
        norms = (norm,)
        default_norm = norm

        def run(self, model, images, goal, budget, draws):
            return propose(images, budget)

    return Plugin().configure(eps=12)


@pytest.mark.parametrize(("norm", "cheat", "violation"), CHEATS, ids=[f"{n}-{c.__name__}" for n, c, _ in CHEATS])
def test_cheats_are_caught_by_name_and_fool_nobody(model, data, norm, cheat, violation):
    rows = rc.evaluate(model, data, attack_with(cheat, norm))
    attacked = rows[rows["clean_pred"] == rows["label"]]
    assert set(attacked["violation"]) == {violation} and not rows["fooled"].any() and rows["size"].max() == 0


@pytest.mark.parametrize("norm", ["affine", "viewpoint"])
def test_honest_plugins_are_valid(model, data, norm):
    rows = rc.evaluate(model, data, attack_with(honest, norm))
    assert rows["valid"].all() and rows["size"].max() == pytest.approx(6, abs=3.1)


def test_parameters_are_no_answer_to_a_ball(model, data):
    class Plugin(rc.Attack):
        def run(self, model, images, goal, budget, draws):
            return TransformedImages(images, torch.zeros(len(images), 5, dtype=torch.float64))

    rows = rc.evaluate(model, data, Plugin().configure(eps=0.1))
    assert set(rows["violation"]) == {"not-a-tensor"} or not rows["valid"].all()
