from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradients import value_and_gradient
from robustcaps.attacks.losses import LOSSES, cross_entropy_loss
from robustcaps.registry import ATTACKS


class Confident(nn.Module):
    """Two pixels as logits, scaled until the softmax saturates in float32."""

    def forward(self, images):
        return 1000.0 * images.flatten(1)


IMAGES = torch.tensor([[[[0.9, 0.1, 0.0]]]])
GOAL = rc.Untargeted(torch.tensor([0]))


def gradient_of(loss):
    return value_and_gradient(LOSSES[loss], CountedModel(Confident(), Counts.zeros(1)), IMAGES, GOAL)[1]


def test_ce_is_the_cross_entropy_and_underflows_where_log_odds_do_not():
    assert not gradient_of("ce").any()
    assert gradient_of("log-odds").flatten().tolist() == pytest.approx([-1000.0, 1000.0, 0.0])


def test_a_logit_scale_changes_the_loss_but_not_the_logits_it_returns():
    images = torch.tensor([[[[0.0, 1e-4, 0.0]]]])
    values, logits = cross_entropy_loss(CountedModel(Confident(), Counts.zeros(1)), images, GOAL, logit_scale=3.0)
    assert values == nn.functional.cross_entropy(3.0 * Confident()(images), torch.tensor([0]), reduction="none")
    assert torch.equal(logits, Confident()(images))


@pytest.mark.parametrize("name", ["fgsm", "bim", "momentum", "pgd", "eot-pgd"])
def test_log_odds_are_the_default(name):
    assert inspect.signature(ATTACKS.entry(name).factory).parameters["loss"].default == "log-odds"


def test_an_unknown_loss_is_answered_with_the_choices():
    with pytest.raises(rc.UserError) as error:
        rc.load_attack("bim", eps=0.1, loss="plain-ce")
    assert "loss: input should be 'log-odds', 'ce', 'ce-scores', 'training', 'margin' or 'dlr'" in str(error.value)
