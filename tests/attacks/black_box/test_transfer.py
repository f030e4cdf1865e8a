from __future__ import annotations

import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.attacks.evaluation import evaluate


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


def test_a_surrogate_that_is_attacked_itself_is_counted_once(data):
    model = Linear(0)
    rows = evaluate(
        model, data, rc.load_attack("transfer", surrogate=model, attack={"use": "bim", "steps": 3}, eps=0.1)
    )
    assert rows["backwards"].max() == 3 and rows["queries"].max() <= 2


@pytest.mark.parametrize("around", ["worst-case", "minimal"])
def test_transfer_inside_other_searches_is_the_same_attack(data, around):
    eps, model, inner = [0.02, 0.05, 0.1, 0.2], Linear(0), {"use": "transfer", "surrogate": "other", "attack": "fgsm"}
    options = {"attacks": [inner]} if around == "worst-case" else {"attack": inner, "halvings": 8}
    plain = rc.load_attack("transfer", surrogate=Linear(1), attack="fgsm", eps=eps)
    alone = evaluate(model, data, plain).pivot_table(index="index", columns="eps", values="fooled").cummax(axis=1)
    configured = rc.load_attack(around, eps=eps, **options)
    rows = evaluate(model, data, configured, load_surrogate={"other": Linear(1)}.__getitem__)
    within = rows.pivot_table(index="index", columns="eps", values="fooled")
    assert within.equals(alone) if around == "worst-case" else (within.mean() >= alone.mean() - 0.06).all()
    assert set(rows["surrogate"]) == {""}  # the attacked model is queried as well, so it is no pure transfer


def test_a_part_that_cheats_is_named(data):
    @rc.attack("leaves-the-box")
    def leaves(model, images, labels, eps):
        """All is too bright."""
        return images + 2

    for use, options in {
        "transfer": {"surrogate": Linear(1), "attack": "leaves-the-box"},
        "worst-case": {"attacks": ["leaves-the-box"]},
    }.items():
        rows = evaluate(Linear(0), data, rc.load_attack(use, eps=0.1, **options))
        assert set(rows["violation"]) == {"outside-box"} and not rows["fooled"].any()
