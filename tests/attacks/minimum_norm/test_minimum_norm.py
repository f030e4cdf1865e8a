from __future__ import annotations

import pytest
import torch
from torch import nn

import robustcaps as rc
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Targeted, Untargeted
from robustcaps.attacks.norms import NORMS
from robustcaps.errors import UserError
from robustcaps.utils.sample_random import Draws

FAR = {"linf": 1.0, "l2": 100.0}
SEARCHES = [("cw", "l2"), ("deepfool", "l2"), ("deepfool", "linf")]


def classifier(classes=4):
    with torch.random.fork_rng():
        torch.manual_seed(6)
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Tanh(), nn.Linear(24, classes)).double().eval()
    with torch.no_grad():
        net[1].weight *= 3.0
    return net


def labelled(model, n=12):
    images = torch.rand(n, 1, 6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    with torch.no_grad():
        return images, model(images).argmax(1)


def search(name, norm, model, images, goal, counts=None, **options):
    attack = rc.load_attack(name, eps=FAR[norm], norm=norm, **options)
    counted = CountedModel(model, counts or Counts.zeros(len(images)))
    return attack.search(counted, images, goal, norm, Draws(0, torch.arange(len(images))))


@pytest.mark.parametrize(
    ("name", "norm", "share", "extra"),
    [("cw", "l2", 0.01, 5e-3), ("deepfool", "l2", 0.021, 2e-4), ("deepfool", "linf", 0.021, 2e-4)],
)
def test_on_a_linear_model_they_find_the_distance_to_the_boundary(linear, linear_data, name, norm, share, extra):
    """|z_label - z_other| / |w_label - w_other|_dual, from above, and by the overshoot or the precision at most."""
    with torch.no_grad():
        logits = linear(linear_data.images)
        right = logits.argmax(1) == linear_data.labels
        images, labels, logits = linear_data.images[right], linear_data.labels[right], logits[right]
    weight = linear.linear.weight.detach().double()
    dual = torch.linalg.vector_norm(weight[0] - weight[1], ord={"linf": 1, "l2": 2}[norm])
    exact = (logits[:, 0] - logits[:, 1]).abs().double() / dual
    found = search(name, norm, linear, images, Untargeted(labels))
    assert (linear(found).argmax(1) != labels).all()
    distance = NORMS[norm].size(found - images)
    assert (distance >= exact - 1e-6).all()
    assert (distance <= exact * (1 + share) + extra).all()


@pytest.mark.parametrize(("name", "norm"), SEARCHES)
def test_what_they_find_is_adversarial_and_close(name, norm):
    model = classifier()
    images, labels = labelled(model, 24)
    found = search(name, norm, model, images, Untargeted(labels))
    assert (model(found).argmax(1) != labels).all()
    assert ((found >= 0) & (found <= 1)).all()
    nearer = images + 0.9 * (found - images)
    assert (model(nearer).argmax(1) == labels).double().mean() > 0.9  # they stop right behind the boundary


@pytest.mark.parametrize("confidence", [0.0, 0.3])
def test_cw_reaches_any_target_with_the_confidence_asked_for(confidence):
    model = classifier()
    images, labels = labelled(model, 24)
    targets = (labels + 1 + torch.arange(24) % 3) % 4
    found = search("cw", "l2", model, images, Targeted(targets), confidence=confidence, lr=0.03)
    logits = model(found)
    assert (logits.argmax(1) == targets).all()
    lead = logits.gather(1, targets[:, None])[:, 0] - logits.scatter(1, targets[:, None], -torch.inf).amax(1)
    assert (lead >= confidence - 1e-9).all() and lead.median() < confidence + 0.02


@pytest.mark.parametrize(("name", "norm"), SEARCHES)
def test_a_sample_does_not_depend_on_its_batch_nor_its_cost(name, norm):
    model = classifier()
    images, labels = labelled(model)
    counts = Counts.zeros(len(images))
    whole = search(name, norm, model, images, Untargeted(labels), counts)
    rows = torch.tensor([7, 3, 11, 0])
    part_counts = Counts.zeros(4)
    part = search(name, norm, model, images[rows], Untargeted(labels[rows]), part_counts)
    assert torch.allclose(part, whole[rows], rtol=0, atol=1e-9)
    assert part_counts.forwards.tolist() == counts.forwards[rows].tolist()
    assert part_counts.backwards.tolist() == counts.backwards[rows].tolist()
    assert len(set(counts.forwards.tolist())) > 1  # samples leave the batch on their own


@pytest.mark.parametrize(("name", "norm"), SEARCHES)
def test_one_search_serves_every_eps(network, network_data, name, norm):
    few, many = (
        rc.evaluate(network, network_data, rc.load_attack(name, eps=eps, norm=norm))
        for eps in ([FAR[norm]], [0.01, 0.05, 0.2, FAR[norm]])
    )
    assert few["backwards"].sum() == many["backwards"].sum() > 0
    assert few["fooled"].all()
    assert many.groupby("eps")["fooled"].mean().is_monotonic_increasing
    assert many["valid"].all()


def test_deepfool_takes_a_gradient_per_other_class_and_step():
    model = classifier(classes=7)
    images, labels = labelled(model, 10)
    counts = Counts.zeros(10)
    search("deepfool", "l2", model, images, Untargeted(labels), counts)
    assert (counts.backwards == 6 * counts.forwards).all()


class Broken(nn.Module):
    """Sure of class 0, and its logits are NaN anywhere but near the middle of the box; or flat everywhere."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        self.flat = flat

    def forward(self, images):
        mean = images.mean((1, 2, 3))
        slope = 0.0 if self.flat else torch.where((mean - 0.5).abs() < 1e-3, 1.0, torch.nan)
        return torch.stack([5.0 + slope * mean, slope * -mean, slope * -mean, slope * -mean], 1)


BOTH = [*SEARCHES, ("apgd-ce", "linf"), ("apgd-dlr", "l2"), ("bim", "linf")]


@pytest.mark.parametrize(("name", "norm"), BOTH)
def test_nan_is_never_silent(name, norm):
    images, labels = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.long)
    attack = rc.load_attack(name, eps=0.3, norm=norm)
    (batch,) = attack.sweep(Broken(flat=False), images, Untargeted(labels), attack.budgets)
    answers = Broken(flat=False)(batch.images)
    assert batch.violations == ["not-finite"] * 3 or answers.isnan().any(1).all()


@pytest.mark.parametrize(("name", "norm"), BOTH)
def test_without_a_gradient_nothing_is_found_and_nothing_breaks(name, norm):
    images, labels = torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.long)
    rows = rc.evaluate(Broken(flat=True), (images, labels), rc.load_attack(name, eps=0.3, norm=norm))
    assert rows["valid"].all() and not rows["fooled"].any()


def test_they_refuse_what_they_cannot_do():
    with pytest.raises(UserError, match="'cw' supports l2 only"):
        rc.load_attack("cw", eps=0.1)
    with pytest.raises(UserError, match="'deepfool' does not support targeted goals"):
        rc.load_attack("deepfool", eps=0.1, goal="targeted")
