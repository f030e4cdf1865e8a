from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import robustcaps as rc
from robustcaps.attacks import load_attack
from robustcaps.attacks.budgets import Budget, make_budgets
from robustcaps.attacks.goals import GoalSpec
from robustcaps.errors import UserError
from robustcaps.utils.sample_random import Draws

MISTAKES = [
    ({"use": "fgms", "eps": 0.1}, "unknown attack 'fgms'. Did you mean 'fgsm'?"),
    ({"use": "bim", "eps": 0.1, "stpes": 3}, "unknown option 'stpes'. Did you mean 'steps'?"),
    ({"use": "bim", "epss": 0.1}, "unknown option 'epss'. Did you mean 'eps'?"),
    ({"use": "bim", "eps": 0.1, "steps": 0}, "steps: input should be greater than or equal to 1 (given: 0)"),
    ({"use": "bim", "eps": 0.1, "loss": "hinge"}, "loss: input should be 'log-odds', 'ce'"),
    ({"use": "bim"}, "eps: missing"),
    ({"use": "bim", "eps": []}, "eps: the list is empty"),
    ({"use": "bim", "eps": -0.1}, "eps: must not be negative"),
    ({"use": "bim", "eps": 1e39}, "eps: must not be above 1e+06"),
    ({"use": "bim", "eps": True}, "eps: must be a finite number, not True"),
    ({"use": "bim", "eps": math.nan}, "eps: must be a finite number"),
    ({"use": "bim", "eps": ["much"]}, "eps: must be a finite number, not 'much'"),
    ({"use": "bim", "eps": 0.1, "norm": "l3"}, "norm: unknown norm 'l3'"),
    ({"use": "bim", "eps": 0.1, "unit": "pixels"}, "unit: unknown unit 'pixels'. Did you mean 'pixel'?"),
    ({"use": "bim", "eps": 0.1, "goal": "win"}, "goal: must be 'untargeted' or 'targeted'"),
    ({"use": "bim", "eps": 0.1, "target": 1}, "target: only a targeted goal has one"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named_with_the_choices(words, message):
    with pytest.raises(UserError) as error:
        load_attack(**words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_targets_are_checked_against_the_classes():
    names = ("cat", "dog")
    assert GoalSpec("targeted", "dog").targets(names) == [1]
    assert GoalSpec("targeted", "every").targets(names) == [0, 1]
    with pytest.raises(UserError, match=r"unknown class 'dgo'\. Did you mean 'dog'\?"):
        GoalSpec("targeted", "dgo").targets(names)
    with pytest.raises(UserError, match=r"class 2 is not in 0\.\.1"):
        GoalSpec("targeted", 2).targets(names)


def test_budgets_are_sorted_and_unique():
    assert [budget.eps for budget in make_budgets([0.2, 0.1, 0.2])] == [0.1, 0.2]
    for number in (np.float32(0.5), np.array(0.5), torch.tensor(0.5), np.array([0.5]), torch.tensor([0.5])):
        assert make_budgets(number) == (Budget(0.5),)
    assert Budget(0.5, unit="std").radius(torch.zeros(2, 1, 3, 3)).flatten().tolist() == [0, 0]


@pytest.mark.usefixtures("registries")
def test_the_plugin_of_the_readme_equals_the_native_attack(network, network_data):
    @rc.attack("my-fgsm")
    def my_fgsm(model, images, labels, eps):
        images.requires_grad_()
        (grad,) = torch.autograd.grad(torch.nn.functional.cross_entropy(model(images), labels), images)
        return (images + eps * grad.sign()).clamp(0, 1)

    mine = rc.evaluate(network, network_data, rc.load_attack("my-fgsm", eps=[0.01, 0.1]))
    spec = rc.evaluate(network, network_data, rc.load_attack("fgsm", eps=[0.01, 0.1]))
    columns = ["index", "eps", "adv_pred", "fooled", "valid", "linf"]
    assert mine[columns].equals(spec[columns])
    assert mine["valid"].all()
    assert (mine["backwards"].sum(), spec["backwards"].sum()) == (2 * 32, 32)
    assert "my-fgsm" in rc.list_attacks("my-*")


@pytest.mark.usefixtures("registries")
def test_a_function_plugin_has_typed_options_and_its_own_draws(network, network_data):
    @rc.attack("jitter")
    def jitter(model, images, labels, eps, draws, strength: float = 1.0):
        """Add noise."""
        noise = draws.uniform(tuple(images.shape[1:])) * 2 - 1
        return (images + strength * eps * noise).clamp(0, 1)

    attack = rc.load_attack("jitter", eps=0.1, strength=0.5)
    assert attack.randomised
    rows = rc.evaluate(network, network_data, attack)
    assert rows["valid"].all() and 0 < rows["linf"].max() <= 0.05 + 1e-6
    with pytest.raises(UserError, match="strength: input should be a valid number"):
        rc.load_attack("jitter", eps=0.1, strength="lots")
    with pytest.raises(UserError, match="'jitter' does not support targeted goals"):
        rc.load_attack("jitter", eps=0.1, goal="targeted")
    rc.attack("jitter")(jitter)  # a notebook cell that is run again
    jitter.__module__ = "another"
    with pytest.raises(UserError, match="attack 'jitter' is registered already"):
        rc.attack("jitter")(jitter)


def test_a_sweep_on_a_plain_module_yields_one_checked_proposal_per_budget(network, network_data):
    attack = load_attack("pgd", eps=[0.01, 0.1])
    images, goal = network_data.images, rc.Untargeted(network_data.labels)
    batches = list(attack.sweep(network, images, goal, attack.budgets))
    assert [batch.budget.eps for batch in batches] == [0.01, 0.1]
    for batch in batches:
        assert batch.violations == [None] * len(images)
        assert (batch.images - images).abs().max() <= batch.budget.eps + 1e-6
        fooled = goal.reached(network(batch.images).argmax(1))
        rows = rc.evaluate(network, network_data, attack)
        assert fooled.tolist() == rows[rows["eps"] == batch.budget.eps]["fooled"].tolist()


def test_a_subclass_is_an_attack_without_being_registered(network, network_data):
    class Grey(rc.Attack):
        def run(self, model, images, goal, budget, draws):
            return images + budget.radius(images) * (0.5 - images).sign()

    rows = rc.evaluate(network, network_data, Grey().configure(eps=[0.01, 0.02]))
    assert rows["valid"].all() and set(rows["attack"]) == {"Grey"} and len(rows) == 2 * len(network_data)
    with pytest.raises(UserError, match="attack 'Grey' has no budget"):
        rc.evaluate(network, network_data, Grey())


def test_a_target_can_be_the_least_likely_or_a_random_class():
    labels = torch.tensor([0, 1, 2, 0])
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0], [1.0, -2.0, 4.0], [2.0, 1.0, 0.0]])
    names, draws = ("a", "b", "c"), Draws(0, torch.arange(4))
    ((targets, goal),) = GoalSpec("targeted", "least-likely").resolve(labels, names, logits, draws)
    assert targets.tolist() == [1, 0, 1, 2] and torch.equal(goal.classes, targets)
    many = Draws(0, torch.arange(300))
    ((targets, _),) = GoalSpec("targeted", "random").resolve(labels.repeat(75), names, logits.repeat(75, 1), many)
    assert not bool((targets == labels.repeat(75)).any())
    assert torch.bincount(targets).min() > 60
    ((again, _),) = GoalSpec("targeted", "random").resolve(labels, names, logits, many.select(torch.arange(4)))
    assert torch.equal(again, targets[:4])  # whatever the batch


def test_random_targets_need_their_own_seeds_and_are_told_in_the_rows():
    attack = rc.load_attack("fgsm", eps=0.1, goal="targeted", target="random")
    assert attack.randomised and not rc.load_attack("fgsm", eps=0.1, goal="targeted", target=0).randomised
    data = rc.load_data("toys", limit=12)
    one, two = (rc.evaluate(rc.load_model("cnn-small"), data, attack, seed=seed) for seed in (0, 1))
    assert len(one) == 12 and (one["target"] != one["label"]).all()
    assert set(one["target"]) <= set(range(5)) and not one["target"].equals(two["target"])
