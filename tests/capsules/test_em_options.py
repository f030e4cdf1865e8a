"""Options of EM routing beyond the paper: competition per type, first assignments, momentum of the mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robustcaps.capsules.routing import Wiring, convolution, em_steps, matrix_votes
from tests.capsules.em_layers import COMPETITIONS, GRIDS, STARTS, make_layer


def group_sums(assignments: Tensor, wiring: Wiring) -> Tensor:
    """Return the sums (n, G, C, child types) over the slots of each group."""
    n, _, types, children = assignments.shape
    slots = wiring.windows.shape[1]
    by_slot = assignments.unflatten(3, (slots, children // slots)).transpose(2, 3).flatten(1, 2)
    sums = assignments.new_zeros(n, len(wiring.rivals), types, children // slots)
    return sums.index_add(1, wiring.owners.flatten(), by_slot)


@pytest.mark.parametrize("pairing", ["child", "stride-1"])
@pytest.mark.parametrize("grid", GRIDS)
def test_type_competition_shares_each_group_out_among_the_windows_of_one_type(grid, pairing):
    layer, wiring = make_layer(grid, competition="type", n=1), convolution(*grid, pairing=pairing)
    votes = matrix_votes(layer.poses, layer.transforms, wiring)
    first, *later = em_steps(votes, layer.activations, wiring, **layer.rules())
    seen = wiring.copies > 0
    sums = group_sums(first.assignments, wiring)[:, seen]
    torch.testing.assert_close(sums, torch.ones_like(sums))
    for step in later:
        sums = group_sums(step.assignments, wiring)[:, seen]
        assert sums.max() < 1
        assert sums.median() > 0.99


def test_outliers_of_the_type_competition_are_assigned_to_nobody():
    """A child whose votes fit no window gives less than 1 in all, and one far enough away gives nothing."""
    layer = make_layer((3, 2, 1), competition="type", child_types=1, variance_floor=1e-2, iterations=2)
    poses, activations = 0.1 * layer.poses, layer.activations.clone()
    poses[:, 8] *= 30
    activations[:, 8] = 1e-3
    last = replace(layer, poses=poses, activations=activations).steps()[-1]
    sums = group_sums(last.assignments, layer.wiring).amax(dim=(0, 2, 3))
    assert sums[8] < 1e-6
    assert sums[4] > 0.9


@pytest.mark.parametrize("competition", COMPETITIONS)
def test_first_assignments(competition):
    """On a 3x3 grid with 2x2 windows, the children of the first window lie in 1, 2, 2 and 4 windows; 3 parent types."""
    rules = {"competition": competition, "child_types": 1, "iterations": 1, "types": 3}
    uniform, by_types = (make_layer((3, 2, 1), **rules, start=start).steps()[0].assignments for start in STARTS)
    parents = {"field": [3, 6, 6, 12], "position": [3, 3, 3, 3], "type": [1, 2, 2, 4]}[competition]
    for R, expected in ((uniform, parents), (by_types, [3, 3, 3, 3])):
        torch.testing.assert_close(R[:, 0], 1 / torch.tensor(expected, dtype=R.dtype).expand_as(R[:, 0]))


def test_the_mean_keeps_a_share_of_the_former_one():
    """mu_1 = (1 - m) mean, since mu_0 = 0, and the variance is taken around it; mu_2 keeps m mu_1."""
    layer = make_layer((2, 2, 1), offsets=True, iterations=2)
    plain, kept = layer.steps(), replace(layer, mean_momentum=0.25).steps()
    mean, mu = plain[0].parents.poses, kept[0].parents.poses
    torch.testing.assert_close(mu, 0.75 * mean)
    torch.testing.assert_close(kept[0].parents.variance, plain[0].parents.variance + (mean - mu) ** 2)
    votes = matrix_votes(layer.poses, layer.transforms, layer.wiring, layer.offsets)
    r = kept[1].assignments * layer.activations.flatten(1)[:, None, None]
    weighted = torch.einsum("npci,npcih->npch", r, votes) / r.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(kept[1].parents.poses, 0.75 * weighted + 0.25 * mu)
