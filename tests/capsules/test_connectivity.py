from __future__ import annotations

import numpy as np
import pytest
import torch

from robustcaps.capsules.routing import convolution
from tests.capsules import reference
from tests.capsules.em_layers import GRIDS


@pytest.mark.parametrize("grid", GRIDS)
def test_wiring_lists_each_edge_once_from_both_sides(grid):
    wiring = convolution(*grid)
    edges = reference.convolution_edges(*grid)
    assert {(int(wiring.windows[p, s]), p, s) for p, s in np.ndindex(*wiring.windows.shape)} == set(edges)
    for q, row in enumerate(wiring.rivals.tolist()):
        slots = [slot for slot in row if slot < wiring.windows.numel()]
        assert slots == [p * wiring.windows.shape[1] + s for child, p, s in sorted(edges) if child == q]
        assert int(wiring.copies[q]) == len(slots)


@pytest.mark.parametrize("grid", GRIDS)
def test_stride_one_pairing_groups_slots_by_window_plus_slot(grid):
    """Window (y, x) and slot (a, b) belong to the group (y + a, x + b), whatever the stride."""
    size, kernel, stride = grid
    wiring, out = convolution(*grid, pairing="stride-1"), (size - kernel) // stride + 1
    assert torch.equal(wiring.windows, convolution(*grid).windows)
    members = {}
    for slot, (y, x, a, b) in enumerate(np.ndindex(out, out, kernel, kernel)):
        members.setdefault((y + a, x + b), []).append(slot)
    rows = [[slot for slot in row if slot < wiring.windows.numel()] for row in wiring.rivals.tolist()]
    assert rows == [members[place] for place in sorted(members)]
    assert wiring.groups is not None
    for group, row in enumerate(rows):
        assert wiring.owners.flatten()[row].tolist() == [group] * len(row)
        assert int(wiring.copies[group]) == len(row)


def test_stride_one_pairing_is_that_of_children_where_the_stride_is_one():
    by_child, paired = convolution(5, 3, 1), convolution(5, 3, 1, pairing="stride-1")
    assert torch.equal(by_child.rivals, paired.rivals)
    assert torch.equal(by_child.owners, paired.owners)
