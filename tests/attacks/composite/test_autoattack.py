from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

import robustcaps as rc
from robustcaps.attacks.goals import likeliest_wrong_classes
from robustcaps.attacks.minimum_norm.fab import step_to_hyperplane
from robustcaps.errors import UserError
from robustcaps.suite.spec import AttackSpec

LARGE_EPS = {"linf": 1.0, "l2": 10.0}
"""Budgets that the perturbations looked for stay well inside of."""


class Linear(nn.Module):
    """A linear classifier, whose smallest perturbations are known."""

    def __init__(self, classes: int = 4, pixels: int = 9, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, pixels, generator=generator))

    def forward(self, images):
        return (images.flatten(1) - 0.5) @ self.weight.T


def samples(n: int = 20, seed: int = 0) -> torch.Tensor:
    """Return images far from the corners of the box."""
    return 0.4 + 0.2 * torch.rand(n, 1, 3, 3, generator=torch.Generator().manual_seed(seed))


def distances(model: Linear, images: torch.Tensor, norm: str) -> torch.Tensor:
    """Return the distance of each image to the nearest decision boundary (without a box)."""
    logits = model(images)
    labels = logits.argmax(1)
    found = []
    for i, label in enumerate(labels):
        w = model.weight - model.weight[label]
        dual = w.abs().sum(1) if norm == "linf" else w.norm(dim=1)
        found.append(min((logits[i, label] - logits[i, k]) / dual[k] for k in range(len(w)) if k != label))
    return torch.stack(found).detach()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["fab", "fab-t"])
def test_fab_finds_the_smallest_perturbation_of_a_linear_model(name, norm):
    model, images = Linear(), samples()
    labels = model(images).argmax(1)
    expected = distances(model, images, norm).numpy()
    rows = rc.evaluate(model, (images, labels), rc.load_attack(name, eps=LARGE_EPS[norm], norm=norm, steps=30))
    inside = expected < 0.3  # further ones may be cut off by the box
    assert inside.sum() > 5 and rows["fooled"][inside].all()
    np.testing.assert_allclose(rows[norm][inside], expected[inside], rtol=0.06)
    assert (rows[norm] >= expected * (1 - 1e-5))[rows["fooled"]].all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@given(seed=st.integers(0, 10_000))
def test_steps_to_hyperplanes_are_the_smallest_in_the_box(norm, seed):
    generator = np.random.default_rng(seed)
    x, w = generator.random(6), generator.normal(size=6)
    offset = generator.normal()
    step = step_to_hyperplane(*(torch.tensor(each)[None, None, None] for each in (x, w)), torch.tensor([offset]), norm)
    r = step.flatten().numpy()
    assert (x + r >= -1e-9).all() and (x + r <= 1 + 1e-9).all()
    reachable = np.where(w * -np.sign(offset) > 0, 1 - x, x) @ np.abs(w)
    if reachable < abs(offset):
        assert abs(offset + w @ r) == pytest.approx(abs(offset) - reachable, abs=1e-6)
        return
    assert offset + w @ r == pytest.approx(0, abs=1e-6)
    if norm == "linf":
        a, b = np.vstack([np.c_[np.eye(6), -np.ones(6)], np.c_[-np.eye(6), -np.ones(6)]]), np.zeros(12)
        bounds = [*zip(-x, 1 - x, strict=True), (0, None)]
        best = linprog([0] * 6 + [1], a, b, [[*w, 0]], [-offset], bounds=bounds).fun
        assert np.abs(r).max() == pytest.approx(best, abs=1e-6)
    else:
        free = (r > 1e-9 - x) & (r < 1 - x - 1e-9)
        multiplier = r[free] @ w[free] / (w[free] @ w[free]) if free.any() else -np.sign(offset) * np.inf
        assert r == pytest.approx(
            np.clip(multiplier * w, -x, 1 - x), abs=1e-6
        )  # Karush-Kuhn-Tucker: it is the smallest


def test_targets_are_the_likeliest_wrong_classes():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    assert likeliest_wrong_classes(logits, torch.tensor([0, 2]), 2).tolist() == [[2, 1], [3, 1]]
    assert likeliest_wrong_classes(logits, torch.tensor([0, 2]), 9).shape == (2, 3)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["apgd-t", "autoattack"])
def test_linear_models_are_fooled_just_where_they_can_be(name, norm):
    model, images = Linear(classes=5), samples(40)
    labels = model(images).argmax(1)
    distance = distances(model, images, norm).numpy()
    eps = float(np.quantile(distance, 0.5))
    rows = rc.evaluate(model, (images, labels), rc.load_attack(name, eps=eps, norm=norm))
    sure = np.abs(distance - eps) > 0.02 * eps
    assert (rows["fooled"][sure] == (distance < eps)[sure]).all() and rows["valid"].all()


def test_a_sweep_shares_its_work_and_a_success_counts_for_every_larger_eps():
    model, images = Linear(classes=5), samples(12)
    labels = model(images).argmax(1)
    sweep = [0.01, 0.03]
    together = rc.evaluate(model, (images, labels), rc.load_attack("autoattack", eps=sweep))
    alone = [rc.evaluate(model, (images, labels), rc.load_attack("autoattack", eps=eps)) for eps in sweep]
    fooled = together.pivot_table(index="index", columns="eps", values="fooled", aggfunc="max").to_numpy(dtype=bool)
    assert (np.diff(fooled.astype(int), axis=1) >= 0).all()
    for place, rows in enumerate(alone):
        assert (fooled[:, place] == rows.sort_values("index")["fooled"].to_numpy()).all()
    assert together["forwards"].sum() < sum(rows["forwards"].sum() for rows in alone)


def test_few_classes_leave_out_the_targeted_loss_and_say_so():
    model, images = Linear(classes=3), samples(8)
    labels = model(images).argmax(1)
    with pytest.warns(UserWarning, match="AutoAttack without APGD-T: its loss needs 4 classes, the model has 3"):
        rows = rc.evaluate(model, (images, labels), rc.load_attack("autoattack", eps=[0.001, 1.0]))
    assert rows["valid"].all() and rows["fooled"][rows["eps"] == 1.0].all()
    with pytest.raises(UserError, match="needs 4 classes or more, but the model has 3"):
        rc.evaluate(model, (images, labels), rc.load_attack("apgd-t", eps=0.1))


@pytest.mark.parametrize(("options", "label"), [({}, "standard"), ({"version": "rand"}, "rand")])
def test_tables_call_it_autoattack(options, label):
    assert AttackSpec(use="autoattack", **options).label == f"AutoAttack ({label})"
    assert AttackSpec(use="autoattack", name="mine", **options).label == "mine"


def test_the_version_for_randomised_models_averages_gradients():
    attack = rc.load_attack("autoattack", eps=0.1, version="rand")
    assert [(part.name, part.eot) for part in attack.inner_attacks] == [("apgd-ce", 20), ("apgd-dlr", 20)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("name", ["cnn-small", "vector-capsnet-small"])
def test_it_is_as_strong_as_the_parts_of_torchattacks(name, norm):
    """Of 200 samples, at most one more survives than under their APGD, targeted APGD, FAB and Square together."""
    pytest.importorskip("torchattacks")
    model, data = rc.load_model(name, data="toys"), rc.load_data("toys", limit=200)
    eps = {"linf": 0.02, "l2": 0.3}[norm]
    ours = rc.evaluate(model, data, rc.load_attack("autoattack", eps=eps, norm=norm))
    parts = [
        {"use": "torchattacks.apgd", "steps": 100},
        {"use": "torchattacks.apgdt", "steps": 100},
        {"use": "torchattacks.fab", "steps": 100, "multi_targeted": True},
        {"use": "torchattacks.square", "n_queries": 5000},
    ]
    theirs = rc.evaluate(model, data, rc.load_attack("worst-case", attacks=parts, eps=eps, norm=norm))
    assert (~ours["fooled"]).sum() <= (~theirs["fooled"]).sum() + 1


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fab_of_torchattacks_tries_every_target_although_the_first_succeeds(norm):
    pytest.importorskip("torchattacks")
    model, images = Linear(), samples()
    labels = model(images).argmax(1)
    expected = distances(model, images, norm).numpy()
    attack = rc.load_attack("torchattacks.fab", eps=LARGE_EPS[norm], norm=norm, steps=30, multi_targeted=True)
    rows = rc.evaluate(model, (images, labels), attack)
    inside = expected < 0.3
    assert rows["fooled"][inside].all()
    np.testing.assert_allclose(rows[norm][inside], expected[inside], rtol=0.06)
