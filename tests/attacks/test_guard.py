"""A catalogue of attacks that cheat or are broken: each is caught by its name and fools nobody."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import robustcaps as rc
from robustcaps.attacks.base import FunctionAttack
from robustcaps.attacks.composite.bisection import WorstCase
from robustcaps.attacks.evaluation import evaluate
from robustcaps.attacks.gradient_based.iterative import SingleStepAttack


def noisy(images):
    return (images + 0.05 * torch.sign(images - 0.5)).clamp(0, 1)


def edit(tensor, change):
    with torch.no_grad():
        change(tensor)


def out_of_ball(model, images, labels, eps):
    return 1 - images


def out_of_box(model, images, labels, eps):
    return images.round() + eps * (2 * images.round() - 1)


def nan(model, images, labels, eps):
    return images * torch.nan


def wrong_shape(model, images, labels, eps):
    return images[:, :, :4]


def fewer(model, images, labels, eps):
    return images[:-1]


def wrong_dtype(model, images, labels, eps):
    return noisy(images).double()


def nothing(model, images, labels, eps):
    return None


def edits_images(model, images, labels, eps):
    images.data.fill_(0.5)
    return images


def edits_labels(model, images, labels, eps):
    labels.fill_(0)
    return noisy(images)


def edits_weights(model, images, labels, eps):
    edit(model.model[5].weight, lambda weight: weight.mul_(-1))
    return images


def edits_buffers(model, images, labels, eps):
    edit(model.model[1].running_mean, lambda mean: mean.add_(5))
    return images


def turns_on_training(model, images, labels, eps):
    model.train()
    return noisy(images)


def turns_off_gradients(model, images, labels, eps):
    model.requires_grad_(requires_grad=False)
    return noisy(images)


def seeds_torch(model, images, labels, eps):
    torch.manual_seed(0)
    return noisy(images)


def draws_from_numpy(model, images, labels, eps):
    np.random.rand()  # noqa: NPY002
    return noisy(images)


def draws_from_python(model, images, labels, eps):
    random.random()
    return noisy(images)


def hooks_the_output(model, images, labels, eps):
    model.model.register_forward_hook(lambda module, inputs, output: -output)
    return images


def hooks_a_layer(model, images, labels, eps):
    model.model[5].register_forward_pre_hook(lambda module, inputs: (-inputs[0],))
    return images


def replaces_forward(model, images, labels, eps):
    model.model.forward = lambda batch: -torch.ones(len(batch), 3)
    return images


def swaps_a_layer(model, images, labels, eps):
    model.model[5] = torch.nn.Linear(4 * 6 * 6, 3)
    torch.manual_seed(0)
    return images


def adds_a_parameter(model, images, labels, eps):
    model.model.extra = torch.nn.Parameter(torch.zeros(3))
    return noisy(images)


def turns_off_autograd(model, images, labels, eps):
    torch.set_grad_enabled(False)
    return noisy(images)


CATALOGUE = {
    out_of_ball: "outside-ball",
    out_of_box: "outside-box",
    nan: "not-finite",
    wrong_shape: "wrong-shape",
    fewer: "wrong-shape",
    wrong_dtype: "wrong-dtype",
    nothing: "not-a-tensor",
    edits_images: "changed-inputs",
    edits_labels: "changed-inputs",
    edits_weights: "changed-weights",
    edits_buffers: "changed-buffers",
    turns_on_training: "changed-mode",
    turns_off_gradients: "changed-requires-grad",
    hooks_the_output: "changed-structure",
    hooks_a_layer: "changed-structure",
    replaces_forward: "changed-structure",
    swaps_a_layer: "changed-structure",
    adds_a_parameter: "changed-structure",
    turns_off_autograd: "changed-grad-mode",
    seeds_torch: "changed-global-rng",
    draws_from_numpy: "changed-global-rng",
    draws_from_python: "changed-global-rng",
}


@pytest.mark.parametrize(("cheat", "violation"), CATALOGUE.items(), ids=lambda item: getattr(item, "__name__", item))
def test_cheats_are_caught_by_name_and_change_nothing(network, network_data, cheat, violation):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    logits = network(network_data.images)
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    rows = evaluate(network, network_data, FunctionAttack(cheat, {}).configure([0.1, 0.2]), batch_size=10)
    attacked = rows[rows["clean_pred"] == rows["label"]]
    assert set(attacked["violation"]) == {violation}
    assert not attacked["valid"].any() and not attacked["fooled"].any()
    assert (attacked["adv_pred"] == attacked["clean_pred"]).all() and attacked["linf"].max() == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.state_dict().keys() == before.keys() and torch.equal(network(network_data.images), logits)
    assert torch.is_grad_enabled()
    assert not any(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert (np.random.get_state()[1] == generators[2]).all()  # noqa: NPY002


def test_one_bad_sample_does_not_spoil_the_others(network, network_data):
    def mixed(model, images, labels, eps):
        adversarial = noisy(images)
        adversarial[::2] = 1 - images[::2]
        return adversarial

    rows = evaluate(network, network_data, FunctionAttack(mixed, {}).configure(0.1))
    attacked = rows[rows["clean_pred"] == rows["label"]]
    assert attacked["violation"].tolist() == [
        "outside-ball" if place % 2 == 0 else "" for place in range(len(attacked))
    ]
    assert attacked["valid"].tolist() == [place % 2 == 1 for place in range(len(attacked))]


def test_rounding_is_no_violation(network, network_data):
    def exact(model, images, labels, eps):
        return images + eps * torch.sign(0.5 - images)

    assert evaluate(network, network_data, FunctionAttack(exact, {}).configure([0.1, 1 / 3, 0.5]))["valid"].all()


def test_gradients_left_on_parameters_are_no_violation(network, network_data):
    def backward(model, images, labels, eps):
        images.requires_grad_()
        F.cross_entropy(model(images), labels).backward()
        return (images + eps * images.grad.sign()).clamp(0, 1)

    together = evaluate(network, network_data, FunctionAttack(backward, {}).configure([0.05, 0.1]))
    alone = evaluate(network, network_data, FunctionAttack(backward, {}).configure(0.1))
    assert together["valid"].all()
    assert together[together["eps"] == 0.1]["l2"].tolist() == alone["l2"].tolist()  # no gradient is added to the next


def test_settings_of_our_networks_are_put_back():
    model = rc.load_model("vector-capsnet-small")

    @rc.attack("fewer-iterations")
    def fewer(model, images, labels, eps):
        """One routing iteration instead of three."""
        layer = model.model.class_capsules
        layer.rules = dataclasses.replace(layer.rules, iterations=1)
        return images

    before = model.class_capsules.rules
    rows = rc.evaluate(model, rc.load_data("toys", limit=4), rc.load_attack("fewer-iterations", eps=0.1))
    assert set(rows.loc[rows["clean_pred"] == rows["label"], "violation"]) == {"changed-structure"}
    assert model.class_capsules.rules == before


def edits_data(weight):
    weight.data.mul_(-1)


def edits_array(weight):
    weight.detach().numpy()[:] = 0


def edits_storage(weight):
    edit(weight, lambda weight: weight.set_(torch.zeros_like(weight)))


def edits_in_place(weight):
    edit(weight, torch.Tensor.zero_)


@pytest.mark.parametrize("edits", [edits_data, edits_array, edits_storage, edits_in_place])
@pytest.mark.parametrize("on_budget", [0.1, 0.2])
def test_built_in_attacks_are_checked_as_well(monkeypatch, network, network_data, edits, on_budget):
    def sweep(self, model, images, goal, budgets, draws):
        for budget in budgets:
            if budget.eps == on_budget:
                edits(model.model[5].weight)
            yield noisy(images)

    attack = rc.load_attack("fgsm", eps=[0.1, 0.2])
    with monkeypatch.context() as patch:
        patch.setattr(SingleStepAttack, "run_sweep", sweep)
        assert attack.is_built_in()
        before, logits = network[5].weight.detach().clone(), network(network_data.images)
        rows = evaluate(network, network_data, attack, batch_size=10)
    attacked = rows[rows["clean_pred"] == rows["label"]]
    is_edited = attacked["eps"] == on_budget
    assert (attacked["violation"] == np.where(is_edited, "changed-weights", "")).all()
    assert (attacked["valid"] == ~is_edited).all() and not attacked.loc[is_edited, "fooled"].any()
    assert torch.equal(network[5].weight, before) and torch.equal(network(network_data.images), logits)


@pytest.mark.parametrize(
    "change",
    [swaps_a_layer, replaces_forward, hooks_a_layer, turns_on_training, seeds_torch, draws_from_numpy, edits_labels],
)
def test_other_changes_by_built_in_attacks_are_found_as_well(monkeypatch, network, network_data, change):
    def sweep(self, model, images, goal, budgets, draws):
        yield change(model, images, goal.classes, 0.1)

    monkeypatch.setattr(SingleStepAttack, "run_sweep", sweep)
    logits = network(network_data.images)
    rows = evaluate(network, network_data, rc.load_attack("fgsm", eps=0.1), batch_size=10)
    assert set(rows.loc[rows["clean_pred"] == rows["label"], "violation"]) == {CATALOGUE[change]}
    assert torch.equal(network(network_data.images), logits)


class Plugin(SingleStepAttack):
    pass


class Disguised(SingleStepAttack):
    __module__ = SingleStepAttack.__module__


def loss_of_a_plugin(model, images, goal):
    return model(images).sum(1), None


def test_only_attacks_without_foreign_code_are_built_in():
    own = [rc.load_attack(name, eps=0.1) for name in ("fgsm", "bim", "apgd-ce", "square", "deepfool", "worst-case")]
    assert all(attack.is_built_in() for attack in own)
    foreign = [Plugin(), Disguised(), SingleStepAttack(loss=loss_of_a_plugin), FunctionAttack(noisy, {})]
    assert not any(attack.is_built_in() for attack in [*foreign, *(WorstCase([attack]) for attack in foreign)])
