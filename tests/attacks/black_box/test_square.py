from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.black_box.square import SEARCHES, SquareWindows, two_bumps
from robustcaps.attacks.evaluation import evaluate
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.norms import NORMS
from robustcaps.data.base import Data
from robustcaps.utils.sample_random import Draws

BUDGETS = [("linf", 0.1), ("l2", 0.8)]


def random_images(n: int, channels: int, height: int, width: int) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(5))


QUERIES = 100
CASES = [{"norm": "linf", "eps": 0.05}, {"norm": "l2", "eps": 0.8, "goal": "targeted", "target": "b"}]


class Coarse(nn.Module):
    """A linear model of three classes that sees the means of 3x3 blocks, as trained networks see coarse shapes best."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(9, 3, generator=torch.Generator().manual_seed(4)))

    def forward(self, images):
        return (nn.functional.avg_pool2d(images, 4).flatten(1) - 0.5) @ self.weight


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case["norm"])
def contest(request):
    """The rows of the search, and of as many random points."""
    model, images = Coarse(), 0.2 + 0.6 * random_images(30, 1, 12, 12)
    data = Data(images, model(images).argmax(1), ("a", "b", "c"))
    search = load_attack("square", **request.param, queries=QUERIES)
    noise = load_attack("noise", **request.param, tries=QUERIES)
    return evaluate(model, data, search), evaluate(model, data, noise)


def test_it_beats_noise_and_keeps_to_the_rules(contest):
    search, noise = contest
    assert search["valid"].all()
    assert search["fooled"].sum() >= noise["fooled"].sum() + 5


def test_one_forward_pass_per_query_until_fooled(contest):
    rows, _ = contest
    attacked = rows[rows["forwards"] > 1]
    kept, fooled = attacked[~attacked["fooled"]], attacked[attacked["fooled"]]
    assert len(kept) and len(fooled)
    assert (kept["forwards"] == QUERIES + 2).all()  # and one for the clean image, one for the adversarial image
    assert fooled["forwards"].between(1 + 2, QUERIES + 2).all() and fooled["forwards"].nunique() > 1
    assert (rows["backwards"] == 0).all()


@pytest.mark.parametrize(("norm", "eps"), BUDGETS)
def test_rows_do_not_depend_on_the_batch(network, network_data, norm, eps):
    some = network_data.select(torch.arange(12))
    attack = load_attack("square", eps=eps / 3, norm=norm, queries=12)
    assert evaluate(network, some, attack).equals(evaluate(network, some, attack, batch_size=5))


@pytest.mark.parametrize(("norm", "eps"), BUDGETS)
def test_more_queries_go_on_climbing(norm, eps):
    """Two classes distinguished by a random pattern: the margin after more queries is never worse, and soon better."""
    pattern = torch.randn(3 * 6 * 9, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 9, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([pattern, -pattern]))
        model[1].bias.copy_(torch.tensor([1000.0, 0.0]))
    images, goal = random_images(6, 3, 6, 9), Untargeted(torch.zeros(6, dtype=torch.long))
    margins = []
    for queries in (1, 2, 8, 64):
        attack = load_attack("square", eps=eps, norm=norm, queries=queries)
        (batch,) = attack.sweep(model, images, goal, attack.budgets)
        assert batch.violations == [None] * 6
        margins.append((model(batch.images) @ torch.tensor([1.0, -1.0])).detach())
    assert (margins[1] <= margins[0]).all()
    assert (margins[3] < margins[2]).all() and (margins[2] < margins[0]).all()


def updated(search, delta, radius, share, draws):
    """Return perturbations after the first update."""
    proposals = search.propose(delta.shape[1:], share, draws, [1])
    return search.update(delta, radius, tuple(part[0] for part in proposals))


@settings(deadline=None, max_examples=40)
@given(
    norm=st.sampled_from(["linf", "l2"]),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    share=st.floats(0.001, 1.0),
    seed=st.integers(0, 1000),
)
def test_moves_stay_in_the_ball_and_belong_to_their_sample(norm, shape, share, seed):
    search, radius = SEARCHES[norm], torch.tensor([0.5, 0.01, 2.0, 0.0]).view(4, 1, 1, 1)
    whole, part = Draws(seed, torch.arange(4)), Draws(seed, torch.tensor([2]))
    delta = search.start(shape, radius, whole)
    moved = updated(search, delta, radius, share, whole)
    start, end = (NORMS[norm].size(found) for found in (delta, moved))
    assert torch.allclose(start, radius.flatten().double())  # all of the budget is used
    assert (end <= radius.flatten() * 1.0001).all()
    alone = updated(search, search.start(shape, radius[2:3], part), radius[2:3], share, part)
    assert torch.allclose(alone, moved[2:3], rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    numbers=st.lists(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=1, max_size=5),
    data=st.data(),
)
def test_windows_lie_inside_and_hold_the_pattern(height, width, numbers, data):
    side = data.draw(st.integers(1, min(height, width)))
    windows = SquareWindows.place(torch.tensor(numbers), side, (1, 1, height, width))
    assert (windows.mask.sum((1, 2, 3)) == side * side).all()
    pattern = torch.arange(1.0, side * side + 1).view(side, side)
    turned = torch.arange(len(numbers)) % 2 == 1
    pasted = windows.paste(pattern, turned)
    for k, (top, left) in enumerate(zip(windows.top, windows.left, strict=True)):
        cut = pasted[k, 0, top : top + side, left : left + side]
        assert torch.equal(cut, pattern.T if turned[k] else pattern)
        assert pasted[k].sum() == pattern.sum()


@pytest.mark.parametrize("side", [1, 2, 3, 5, 8])
def test_bumps_follow_the_formula(side):
    expected = torch.zeros(side, side)
    for left, width, sign in ((0, side // 2, 1), (side // 2, side - side // 2, -1)):
        n = side // 2
        for r in range(1, side + 1):
            for s in range(1, width + 1):
                rings = n - max(abs(r - side // 2 - 1), abs(s - width // 2 - 1))
                expected[r - 1, left + s - 1] = sign * sum(1 / (n + 1 - k) ** 2 for k in range(rings + 1))
    assert torch.allclose(two_bumps(side), expected / expected.norm())


def test_another_seed_searches_elsewhere(network, network_data):
    some = network_data.select(torch.arange(8))
    attack = load_attack("square", eps=0.02, queries=10)
    first, second = (evaluate(network, some, attack, seed=seed).drop(columns="seed") for seed in (0, 1))
    assert not first.equals(second) and attack.randomised
