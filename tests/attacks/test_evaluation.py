from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.attacks.evaluation import COLUMNS, evaluate
from robustcaps.errors import UserError


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd", "noise"])
@pytest.mark.parametrize("goal", ["untargeted", "targeted"])
def test_rows_do_not_depend_on_the_batch_size(network, network_data, attack, goal):
    made = rc.load_attack(attack, eps=[0.02, 0.1], goal=goal)
    reference = evaluate(network, network_data, made, batch_size=len(network_data))
    for size in (1, 5, 64):
        assert evaluate(network, network_data, made, batch_size=size).equals(reference)


def test_rows_say_what_happened(network, network_data):
    rows = evaluate(network, network_data, rc.load_attack("bim", eps=[0.0, 0.05]), suite="s", model_name="m")
    assert tuple(rows.columns) == COLUMNS
    assert len(rows) == 2 * len(network_data) and set(rows["index"]) == set(range(len(network_data)))
    assert (rows["fooled"] == (rows["valid"] & (rows["adv_pred"] != rows["label"]))).all()
    assert rows[["suite", "model", "data", "attack"]].drop_duplicates().values.tolist() == [["s", "m", "random", "bim"]]
    assert (rows["target"] == -1).all()
    at_zero = rows[rows["eps"] == 0]
    assert (at_zero["adv_pred"] == at_zero["clean_pred"]).all() and at_zero["linf"].max() == 0
    wrong = rows[rows["clean_pred"] != rows["label"]]
    assert len(wrong) and wrong["fooled"].all() and wrong["linf"].max() == 0 and wrong["backwards"].sum() == 0


def test_tensors_and_any_module_are_taken(network, network_data):
    pair = (network_data.images, network_data.labels)
    rows = rc.evaluate(network, pair, rc.load_attack("fgsm", eps=0.1))
    named = rc.evaluate(network, network_data, rc.load_attack("fgsm", eps=0.1))
    assert rows.drop(columns="data").equals(named.drop(columns="data"))
    assert set(rows["model"]) == {"Sequential"}


def test_the_model_comes_back_as_it_was(network, network_data):
    network.train()
    network[1].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    evaluate(network, network_data, rc.load_attack("pgd", eps=0.1))
    assert [module.training for module in network] == [True, False, True, True, True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


class Constant(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, images):
        return self.output(images)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: x.flatten(1)[:, :2], "the model has 2 classes, but the data has 3"),
        (lambda x: x.flatten(1)[:, :3] * torch.nan, "not finite on 37 of 37 clean images"),
        (lambda x: x.flatten(1).sum(), r"must return logits \(37, classes\)"),
        (lambda x: x.flatten(1)[:5, :3], r"must return logits \(37, classes\)"),
        (lambda x: [1, 2], r"must return logits \(37, classes\) for 37 images, not list"),
    ],
)
def test_models_that_do_not_answer_are_named(network_data, output, message):
    with pytest.raises(UserError, match=message):
        evaluate(Constant(output), network_data, rc.load_attack("clean"))


def test_a_model_that_breaks_under_attack_is_fooled_not_robust(network_data):
    """Answers with NaN as soon as an image is touched: that is no correct answer."""
    originals = network_data.images

    def output(images):
        logits = (
            nn.functional.one_hot(network_data.labels, 3).float()[: len(images)] + 0 * images.sum((1, 2, 3))[:, None]
        )
        return torch.where(
            torch.equal(images, originals[: len(images)]) * torch.ones_like(logits) > 0, logits, torch.nan
        )

    attack = rc.load_attack("noise", eps=0.1, tries=1)
    rows = evaluate(Constant(output), network_data, attack)
    assert (rows["adv_pred"] == -1).all() and rows["fooled"].all() and rows["valid"].all()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.rand(3, 8, 8), torch.zeros(3).long(), "images must be float32"),
        (torch.rand(3, 1, 8, 8).double(), torch.zeros(3).long(), "images must be float32"),
        (torch.rand(3, 1, 8, 8) * 255, torch.zeros(3).long(), r"in \[0, 1\]"),
        (torch.full((3, 1, 8, 8), torch.nan), torch.zeros(3).long(), "finite"),
        (torch.rand(3, 1, 8, 8), torch.zeros(2).long(), "labels must be int64"),
        (torch.rand(3, 1, 8, 8), torch.zeros(3), "labels must be int64"),
        (torch.rand(3, 1, 8, 8), torch.tensor([0, -1, 2]), r"labels must be in 0\.\.2"),
        (torch.rand(0, 1, 8, 8), torch.zeros(0).long(), "no images"),
    ],
)
def test_bad_data_is_refused(network, images, labels, message):
    with pytest.raises(UserError, match=message):
        evaluate(network, (images, labels), rc.load_attack("clean"))


def test_progress_ends_at_the_number_of_rows(network, network_data):
    seen = []
    attack = rc.load_attack("fgsm", eps=[0.1, 0.2], goal="targeted")
    rows = evaluate(
        network, network_data, attack, batch_size=10, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (len(rows), len(rows)) and np.all(np.diff([done for done, _ in seen]) > 0)
