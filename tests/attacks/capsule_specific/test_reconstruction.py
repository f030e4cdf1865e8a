from __future__ import annotations

import pytest
import torch

import robustcaps as rc
from robustcaps.attacks.capsule_specific.reconstruction import reconstruction_loss
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Targeted, Untargeted
from robustcaps.attacks.losses import log_odds
from robustcaps.errors import UserError


@pytest.fixture(scope="module")
def capsules():
    return rc.load_model("vector-capsnet-small", data="toys", device="cpu")


@pytest.fixture(scope="module")
def toys():
    return rc.load_data("toys", split="test", limit=24)


@pytest.fixture(scope="module")
def rows(capsules, toys):
    """The same images attacked without and with the detector in mind; those that were right at first."""
    detector = rc.ReconstructionDetector.fit(capsules, toys.images, quantile=0.9)
    attacks = [rc.load_attack("bim", eps=0.06), rc.load_attack("reconstruction", eps=0.06, steps=15)]
    found = [rc.detect(capsules, toys, attack, detector) for attack in attacks]
    return {part["attack"][0]: part[part["clean_pred"] == part["label"]] for part in found}


def test_it_fools_the_classifier_and_gets_past_the_detector_more_often_than_bim(rows):
    plain, aware = rows["bim"], rows["reconstruction"]
    assert aware["valid"].all() and aware["fooled"].mean() > 0.8
    assert aware["undetected"].mean() > plain["undetected"].mean() + 0.1
    assert aware["flagged"].mean() < plain["flagged"].mean() - 0.1


def test_every_step_is_one_pass_there_and_back(rows):
    assert (rows["reconstruction"]["forwards"] == 15 + 2).all()  # and the clean image, and the adversarial image
    assert (rows["reconstruction"]["backwards"] == 15).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_rows_do_not_depend_on_the_batch(capsules, toys, norm):
    some = toys.select(torch.arange(8))
    attack = rc.load_attack("reconstruction", eps={"linf": 0.03, "l2": 0.5}[norm], norm=norm, steps=5)
    whole, parts = (rc.evaluate(capsules, some, attack, batch_size=size) for size in (8, 3))
    assert whole["valid"].all() and whole.equals(parts)


@pytest.mark.parametrize("goal_class", [Untargeted, Targeted])
def test_the_objective_changes_at_the_goal(capsules, toys, goal_class):
    images = toys.images[:12]
    with torch.no_grad():
        logits = capsules(images)
        predicted = logits.argmax(1)
        classes = torch.where(torch.arange(12) < 6, predicted, (predicted + 1) % 5)
        goal = goal_class(classes)
        values, _ = reconstruction_loss(CountedModel(capsules, Counts.zeros(12)), images, goal)
        error = (capsules.reconstruct(images) - images).square().sum((1, 2, 3))
    expected = torch.where(goal.reached(predicted), -error, goal.sign * log_odds(logits, classes))
    assert goal.reached(predicted).sum() == 6
    assert torch.allclose(values, expected, rtol=1e-4, atol=1e-4)


def test_it_needs_a_trained_decoder(network, network_data):
    attack = rc.load_attack("reconstruction", eps=0.1)
    with pytest.raises(UserError, match="no decoder"):
        rc.evaluate(network, network_data, attack)
    blind = rc.build_model("vector-capsnet-small", classes=3, channels=1, size=20, reconstruction=0)
    images = torch.linspace(0, 1, 800).view(2, 1, 20, 20)
    with pytest.raises(UserError, match="decoder is untrained"):
        rc.evaluate(blind, (images, blind(images).argmax(1)), attack)
