from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import robustcaps as rc
from robustcaps.attacks.capsule_specific.vote import vote_log_odds_loss
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Targeted, Untargeted
from robustcaps.errors import UserError
from robustcaps.models.matrix_capsnet import MatrixCapsNet

SIZES: dict[str, Any] = {"classes": 3, "channels": 1, "size": 20}
SMALL: dict[str, Any] = {"vector-capsnet-small": {}, "matrix-capsnet-small": {"filters": 8, "types": (2, 3, 4)}}
FAMILIES = sorted(SMALL)


def pictures(n: int) -> torch.Tensor:
    return torch.rand(n, 1, 20, 20, generator=torch.Generator().manual_seed(3))


def build(name: str, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = rc.build_model(name, **SIZES, **SMALL[name], **options)
    if isinstance(model, MatrixCapsNet):
        model.initialise(pictures(16))
    return model.eval()


def data_for(model, n: int = 12):
    images = pictures(n)
    with torch.no_grad():
        return images, model(images).argmax(1)


@pytest.mark.parametrize("name", FAMILIES)
def test_with_one_iteration_there_is_no_routing_to_bypass(name):
    model = build(name, iterations=1)
    unrouted, routed = model.vote_logits(pictures(9))
    assert torch.allclose(routed, model(pictures(9)), atol=1e-5)
    assert torch.equal(unrouted.argsort(1), routed.argsort(1))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("iterations", [2, 3])
def test_the_routed_logits_are_the_networks_own(name, iterations):
    model = build(name, iterations=iterations)
    unrouted, routed = model.vote_logits(pictures(9))
    assert torch.allclose(routed, model(pictures(9)), atol=1e-5)
    assert unrouted.requires_grad and not routed.requires_grad
    alone = torch.cat([model.vote_logits(image)[0] for image in pictures(9).split(1)])
    assert torch.allclose(unrouted, alone, atol=1e-5)


def test_vectors_give_each_class_its_share_of_the_lengths():
    model = build("vector-capsnet-small")
    mean = model.votes(pictures(5)).mean(2)
    squared = mean.square().sum(2)
    lengths = squared / (1 + squared)
    shares = model.vote_logits(pictures(5))[0].softmax(1)
    assert torch.allclose(shares, lengths / lengths.sum(1, keepdim=True), atol=1e-5)


def test_a_mixture_without_assignments_still_tells_the_classes_apart():
    model = build("matrix-capsnet-small", activation="mixture")
    images = pictures(4).requires_grad_()
    unrouted, _ = model.vote_logits(images)
    (gradient,) = torch.autograd.grad(F.cross_entropy(unrouted, torch.zeros(4, dtype=torch.long)), images)
    assert (gradient.flatten(1).abs().amax(1) > 0).all()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("goal_class", [Untargeted, Targeted])
def test_the_loss_is_the_cross_entropy_of_the_votes(name, goal_class):
    model, labels = build(name), torch.tensor([0, 1, 2, 0])
    counted = CountedModel(model, Counts.zeros(4))
    images = pictures(4).requires_grad_()
    values, logits = vote_log_odds_loss(counted, images, goal_class(labels))
    entropy = F.cross_entropy(model.vote_logits(images)[0], labels, reduction="none")
    assert torch.allclose(values, goal_class.sign * entropy.expm1().log(), atol=1e-4)
    assert torch.allclose(logits, model(images), atol=1e-5)
    values.sum().backward()
    assert (counted.counts.forwards.tolist(), counted.counts.backwards.tolist()) == ([1] * 4, [1] * 4)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_it_crafts_on_the_votes_fools_the_routed_network(name):
    model = build(name)
    rows = rc.evaluate(model, data_for(model), rc.load_attack("vote", eps=[0.0, 0.3], steps=10))
    strong = rows[rows["eps"] == 0.3]
    assert rows["valid"].all() and not rows[rows["eps"] == 0]["fooled"].any()
    assert strong["fooled"].mean() > 0.5
    assert (strong[strong["fooled"]]["backwards"] < 10).any()  # stopped by what the routed network said


def test_only_capsules_vote(network, network_data):
    with pytest.raises(UserError, match="Sequential has no votes: it is not a capsule network"):
        rc.evaluate(network, network_data, rc.load_attack("vote", eps=0.1))
