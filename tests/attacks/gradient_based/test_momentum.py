"""Momentum, and gradients averaged over the passes of a randomised model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import robustcaps as rc
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradients import value_and_gradient
from robustcaps.attacks.losses import LOSSES


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(25, 16), nn.Tanh(), nn.Linear(16, 3)).double().eval()


def pictures(n=9):
    return torch.rand(n, 1, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def proposed(attack, model, images, labels, counts=None):
    counted = CountedModel(model, counts or Counts.zeros(len(images)))
    (batch,) = attack.sweep(counted, images, rc.Untargeted(labels), attack.budgets)
    assert batch.violations == [None] * len(images)
    return batch.images


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.7)])
@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_momentum_is_that_of_the_paper(norm, eps, decay):
    model, images = network(), pictures()
    labels = model(images).argmax(1)
    options = {"steps": 6, "step": 0.3, "early_stop": False}
    found = proposed(rc.load_attack("momentum", eps=eps, norm=norm, decay=decay, **options), model, images, labels)
    for image, label, mine in zip(images, labels, found, strict=True):
        x, g = image.clone(), torch.zeros_like(image)
        for _ in range(6):
            x.requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(x[None]), label[None]), x)
            g = decay * g + gradient / gradient.abs().sum()
            delta = x.detach() + 0.3 * eps * (g.sign() if norm == "linf" else g / g.norm()) - image
            delta = delta.clamp(-eps, eps) if norm == "linf" else delta * min(1.0, eps / float(delta.norm()))
            x = (image + delta).clamp(0, 1)
        assert torch.allclose(mine, x, rtol=0, atol=1e-9)
    plain = proposed(rc.load_attack("bim", eps=eps, norm=norm, **options), model, images, labels)
    assert not torch.allclose(plain, found, atol=1e-3)


def test_without_decay_momentum_is_bim():
    model, images = network(), pictures()
    labels = model(images).argmax(1)
    momentum = proposed(rc.load_attack("momentum", eps=0.1, decay=0.0), model, images, labels)
    assert torch.equal(momentum, proposed(rc.load_attack("bim", eps=0.1), model, images, labels))


class Shaken(nn.Module):
    """Two classes, distinguished by the mean pixel, and random noise +v or -v at every pass that hides it."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.tilt = torch.tensor([1.0, -1.0] * 18).view(1, 1, 6, 6)

    def expected_margin(self, images):
        return images.mean((1, 2, 3)) - 0.5

    def forward(self, images):
        sign = 2.0 * torch.randint(2, (len(images),)) - 1.0
        margin = self.expected_margin(images) + sign * self.strength * (images * self.tilt).mean((1, 2, 3))
        return torch.stack([margin, -margin], 1)


@pytest.mark.parametrize("name", ["bim", "momentum", "pgd", "apgd-ce"])
def test_averaged_gradients_see_through_the_noise(name):
    images = 0.55 + 0.1 * torch.rand(32, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    labels, model = torch.zeros(32, dtype=torch.long), Shaken(2.0)
    left = {}
    for eot in (1, 30):
        attack = rc.load_attack(name, eps=0.15, steps=8, eot=eot)
        left[eot] = model.expected_margin(proposed(attack, model, images, labels))
    assert (left[30] < 0).float().mean() > 0.9
    assert left[30].mean() < left[1].mean() - 0.02


def test_one_lucky_pass_is_no_success():
    """Half of this model's passes are wrong by chance; with their mean, the attack goes on instead of stopping."""
    model, images = Shaken(5.0), torch.full((64, 1, 6, 6), 0.9)
    images[:, :, ::2] -= 0.1 * torch.rand(64, 1, 3, 6, generator=torch.Generator().manual_seed(2))
    labels, tilt = torch.zeros(64, dtype=torch.long), 0.2 * model.tilt
    images = (images - tilt).clamp(0, 1)
    moved = {}
    for eot in (1, 40):
        found = proposed(rc.load_attack("bim", eps=0.02, steps=10, eot=eot), model, images, labels)
        moved[eot] = (found - images).abs().amax((1, 2, 3))
    assert (moved[1] == 0).float().mean() > 0.3  # stopped at the image itself, on a lucky pass
    assert (moved[40] > 0.015).all()


def test_the_gradient_is_the_mean_over_the_passes_and_each_is_counted():
    model, images = Shaken(1.0), torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    goal = rc.Untargeted(torch.zeros(5, dtype=torch.long))
    several, single = (CountedModel(model, Counts.zeros(5)) for _ in range(2))
    values, gradient, logits = value_and_gradient(LOSSES["log-odds"], several, images, goal, eot=7)
    runs = [value_and_gradient(LOSSES["log-odds"], single, images, goal) for _ in range(7)]  # with the same noise
    for mean, parts in zip((values, gradient, logits), zip(*runs, strict=True), strict=True):
        assert torch.allclose(mean, torch.stack(list(parts)).mean(0))
    assert len({float(run[0][0]) for run in runs}) == 2
    assert several.counts.forwards.tolist() == several.counts.backwards.tolist() == [7.0] * 5


def test_eot_pgd_is_pgd_with_ten_passes():
    model, images = Shaken(5.0), torch.full((8, 1, 6, 6), 0.6)
    labels, counts = torch.zeros(8, dtype=torch.long), Counts.zeros(8)
    options = {"eps": 0.01, "steps": 4}
    first = proposed(rc.load_attack("eot-pgd", **options), model, images, labels, counts)
    assert torch.equal(first, proposed(rc.load_attack("pgd", eot=10, **options), model, images, labels))
    assert counts.backwards.tolist() == [40.0] * 8
