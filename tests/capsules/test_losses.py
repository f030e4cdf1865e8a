from __future__ import annotations

import pytest
import torch

from robustcaps.capsules.losses import margin_loss, spread_loss, spread_margin


@pytest.mark.parametrize(
    ("lengths", "present", "expected"),
    [
        ([0.95, 0.05], [1, 0], 0.0),
        ([0.8, 0.3], [1, 0], 0.1**2 + 0.5 * 0.2**2),
        ([0.0, 1.0], [1, 0], 0.9**2 + 0.5 * 0.9**2),
        ([0.5, 0.6], [1, 1], 0.4**2 + 0.3**2),
        ([0.5, 0.6], [0, 0], 0.5 * (0.4**2 + 0.5**2)),
    ],
)
def test_margin_loss(lengths, present, expected):
    loss = margin_loss(torch.tensor([lengths]), torch.tensor([present], dtype=torch.float32))
    torch.testing.assert_close(loss, torch.tensor([expected]))


@pytest.mark.parametrize(
    ("activations", "label", "margin", "expected"),
    [
        ([0.5, 0.4, 0.1], 0, 0.2, 0.1**2),
        ([0.5, 0.4, 0.1], 2, 0.2, 0.6**2 + 0.5**2),
        ([1.0, 0.0, 0.0], 0, 0.9, 0.0),
        ([0.0, 0.0, 0.0], 1, 0.9, 2 * 0.9**2),
    ],
)
def test_spread_loss(activations, label, margin, expected):
    loss = spread_loss(torch.tensor([activations]), torch.tensor([label]), margin)
    torch.testing.assert_close(loss, torch.tensor([expected]))


def test_spread_loss_has_the_right_gradient():
    activations = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda a: spread_loss(a, labels, 0.5), activations)


def test_losses_are_per_sample():
    scores, labels = torch.tensor([[0.9, 0.0], [0.0, 0.9]]), torch.tensor([0, 0])
    for loss in (spread_loss(scores, labels, 0.5), margin_loss(scores, torch.eye(2)[labels])):
        assert loss.shape == (2,)
        assert loss[0] == 0
        assert loss[1] > 0


@pytest.mark.parametrize(("progress", "margin"), [(0.0, 0.2), (0.25, 0.55), (0.5, 0.9), (1.0, 0.9)])
def test_spread_margin_rises_over_the_first_half(progress, margin):
    assert spread_margin(progress) == pytest.approx(margin)
