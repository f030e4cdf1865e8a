from __future__ import annotations

import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.evaluation import evaluate


class Linear(nn.Module):
    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(3, 16, generator=generator))
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return (images.flatten(1) - 0.5) @ self.weight.T


@pytest.fixture
def data():
    images = torch.rand(20, 1, 4, 4, generator=torch.Generator().manual_seed(5))
    return images, Linear(0)(images).argmax(1)


def test_what_is_crafted_on_the_model_itself_is_the_white_box_attack(data):
    model = Linear(0)
    transferred = evaluate(model, data, rc.load_attack("transfer", surrogate=Linear(0), attack="fgsm", eps=[0.1, 0.2]))
    direct = evaluate(model, data, rc.load_attack("fgsm", eps=[0.1, 0.2]))
    same = ["index", "eps", "adv_pred", "fooled", "linf", "l2", "forwards", "backwards"]
    assert transferred[same].equals(direct[same].assign(forwards=transferred["forwards"]))
    assert transferred["queries"].sum() < direct["queries"].sum()
    assert set(transferred["surrogate"]) == {"Linear"}


def test_one_crafting_serves_all_targets_and_costs_each_the_same(data):
    surrogate = Linear(1)
    attack = rc.load_attack("transfer", surrogate=surrogate, attack={"use": "bim", "steps": 3}, eps=[0.1, 0.2])
    first = evaluate(Linear(0), data, attack)
    crafted = surrogate.calls
    second = evaluate(Linear(0), data, attack, batch_size=7)
    assert surrogate.calls == crafted
    assert first.equals(second)
    assert first.groupby("eps")["backwards"].mean().tolist() == [3, 3]


def test_several_surrogates_are_attacked_together(data):
    model = Linear(0)
    both = rc.load_attack("transfer", surrogate=[Linear(1), Linear(0)], attack="bim", eps=0.3)
    other = rc.load_attack("transfer", surrogate=Linear(1), attack="bim", eps=0.3)
    assert evaluate(model, data, both)["fooled"].mean() > evaluate(model, data, other)["fooled"].mean()


def test_surrogates_are_loaded_by_name_for_the_data_at_hand():
    toys = rc.load_data("toys", limit=10)
    rows = evaluate(rc.load_model("cnn-small"), toys, rc.load_attack("transfer", surrogate="cnn:b", eps=0.1))
    assert set(rows["surrogate"]) == {"cnn:b"} and rows["fooled"].any()
    with pytest.raises(rc.UserError, match="unknown model 'cmm'"):
        evaluate(rc.load_model("cnn-small"), toys, rc.load_attack("transfer", surrogate="cmm", eps=0.1))
