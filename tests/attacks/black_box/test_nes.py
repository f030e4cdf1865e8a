"""NES: descent along finite differences, without gradients."""

from __future__ import annotations

import pytest
import torch

import robustcaps as rc
from robustcaps.attacks.black_box.nes import FiniteDifferenceDescent
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.utils.sample_random import Draws

IMAGES = torch.full((3, 1, 8, 8), 0.5)
LABELS = torch.zeros(3, dtype=torch.long)
DIRECTION = torch.randn(64, generator=torch.Generator().manual_seed(0))


class Rounded(torch.nn.Module):
    """A linear model of rounded images: it has no gradient."""

    def forward(self, images):
        score = ((images * 200).round() / 200 - 0.5).flatten(1) @ DIRECTION
        return torch.stack([1.0 - score, torch.zeros_like(score)], 1)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.6)])
def test_it_descends_where_there_is_no_gradient(norm, eps):
    attack = rc.load_attack("nes", steps=40, pairs=10, eps=eps, norm=norm)
    rows = rc.evaluate(Rounded(), (IMAGES, LABELS), attack)
    assert rows["fooled"].all() and rows["valid"].all() and (rows["backwards"] == 0).all()


def test_the_subspace_grows_to_single_pixels():
    attack = FiniteDifferenceDescent(steps=8, pairs=1)
    draws = Draws(0, torch.arange(3))
    sides = []
    for step in range(8):
        (direction,) = attack._directions(IMAGES, draws, step)
        sides.append(next(side for side in (8, 4, 2, 1) if is_constant_on_tiles(direction, side)))
    assert sides == sorted(sides, reverse=True) and sides[0] > 1 and sides[-1] == 1


def is_constant_on_tiles(direction, side):
    tiles = direction.unfold(2, side, side).unfold(3, side, side)
    return bool((tiles.amax((-2, -1)) == tiles.amin((-2, -1))).all())


def test_a_budget_of_zero_changes_nothing():
    counted = CountedModel(Rounded(), Counts.zeros(3))
    found = FiniteDifferenceDescent(steps=3, pairs=2).run(
        counted, IMAGES, Untargeted(LABELS), Budget(0.0), Draws(0, torch.arange(3))
    )
    assert torch.equal(found, IMAGES)
