from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.attacks.evaluation import evaluate


class Steep(nn.Module):
    """Class 1 where the mean lies above one half: its margin is known exactly."""

    def forward(self, images):
        mean = images.mean((1, 2, 3))
        return torch.stack([0.5 - mean, mean - 0.5], 1)


MARGINS = [0.004, 0.013, 0.02, 0.037, 0.05, 0.071, 0.11, 0.3]
EPS = [0.01, 0.02, 0.04, 0.08, 0.16]


@pytest.fixture
def steep():
    images = 0.5 - torch.tensor(MARGINS)[:, None, None, None].expand(-1, 1, 3, 3)
    return Steep(), (images.contiguous(), torch.tensor([0] * 7 + [0]))


def by_eps(rows):
    return rows.pivot_table(index="index", columns="eps", values="fooled").astype(bool)


@pytest.mark.parametrize("attacks", [["bim"], ["noise", "bim"], ["fgsm", {"use": "pgd", "steps": 5}]])
def test_the_worst_case_is_what_each_eps_alone_would_give(steep, attacks):
    model, data = steep
    rows = evaluate(model, data, rc.load_attack("worst-case", attacks=attacks, eps=EPS))
    alone = evaluate(model, data, rc.load_attack("bim", eps=EPS))
    assert by_eps(rows).equals(by_eps(alone))
    assert rows["valid"].all()


def test_it_takes_fewer_passes_than_a_sweep_and_no_more_on_who_is_fooled_at_once(steep):
    model, data = steep
    sweep = list(pd.Series(range(1, 11)) / 100)
    wise = evaluate(model, data, rc.load_attack("worst-case", attacks=["bim"], eps=sweep))
    plain = evaluate(model, data, rc.load_attack("bim", eps=sweep))
    cost = [frame.groupby("index")[["forwards", "backwards"]].sum().sum().sum() for frame in (wise, plain)]
    assert cost[0] < cost[1] / 1.5


def test_minimal_finds_the_margin(steep):
    model, data = steep
    rows = evaluate(model, data, rc.load_attack("minimal", attack="fgsm", halvings=10, eps=[0.05, 0.2]))
    far = rows[rows["eps"] == 0.2].set_index("index")
    assert far["fooled"].tolist() == [margin < 0.2 for margin in MARGINS]
    found = far.loc[far["fooled"], "linf"].to_numpy()
    assert (found >= MARGINS[:7]).all() and (found - MARGINS[:7] <= 0.2 / 2**10 + 1e-6).all()
    near = rows[rows["eps"] == 0.05]
    assert near["fooled"].tolist() == [margin < 0.05 for margin in MARGINS]
    assert rows["closest"].all()


def test_a_cheating_part_is_worth_nothing(steep):
    model, data = steep

    @rc.attack("leaves-the-ball")
    def leaves(model, images, labels, eps):
        """Everything is white."""
        return torch.ones_like(images)

    rows = evaluate(model, data, rc.load_attack("worst-case", attacks=["leaves-the-ball"], eps=[0.01, 0.02]))
    assert not rows["fooled"].any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attacks": ["fgms"]}, "Did you mean 'fgsm'"),
        ({"attacks": [{"use": "bim", "stepz": 3}]}, "unknown option 'stepz'"),
        ({"attacks": [{"steps": 3}]}, "missing name"),
        ({"attacks": []}, "attacks"),
    ],
)
def test_mistakes_in_parts_are_named(options, words):
    with pytest.raises(rc.UserError, match=words):
        rc.load_attack("worst-case", eps=0.1, **options)
