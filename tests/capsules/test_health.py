from __future__ import annotations

import math

import pytest
import torch

from robustcaps.capsules.health import assignment_entropy
from robustcaps.capsules.routing import Wiring, convolution
from robustcaps.models.base import Classifier
from robustcaps.models.zoo import build_model


def spread(*shares: float) -> float:
    """Return the entropy of a child's assignments as a share of the largest."""
    return -sum(share * math.log(share) for share in shares) / math.log(len(shares))


@pytest.mark.parametrize(
    ("competition", "assignments", "expected"),
    [
        ("field", [[[0.5, 0.1], [0.5, 0.2]], [[0.3, 1.0], [0.4, 0.0]]], (1 + spread(0.1, 0.2, 0.3, 0.4) + 0) / 3),
        ("field", [[[0.5, 0.25], [0.5, 0.25]], [[0.25, 0.5], [0.25, 0.5]]], 1.0),
        ("field", [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]], 0.0),
        (
            "position",
            [[[0.5, 0.1], [0.5, 0.9]], [[0.3, 1.0], [0.7, 0.0]]],
            (1 + spread(0.1, 0.9) + spread(0.3, 0.7)) / 4,
        ),
        ("field", [[[1.0, 0.5]], [[0.5, 1.0]]], 1.0),  # one parent type: the outer children have no choice
        ("type", [[[1.0, 0.5], [1.0, 0.5]], [[0.5, 1.0], [0.5, 1.0]]], 1.0),  # only child 1 lies in two windows
        ("type", [[[1.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]], 0.0),
        ("type", [[[1.0, 0.2], [1.0, 0.1]], [[0.8, 1.0], [0.3, 1.0]]], (spread(0.2, 0.8) + spread(0.25, 0.75)) / 2),
    ],
)
def test_the_entropy_of_assignments_by_hand(competition, assignments, expected):
    """Windows {0, 1} and {1, 2} of a line of three children: with two parent types, child 1 has four parents."""
    wiring = Wiring(windows=torch.tensor([[0, 1], [1, 2]]), rivals=torch.tensor([[0, 4], [1, 2], [3, 4]]))
    R = torch.tensor([assignments], dtype=torch.float64)
    assert assignment_entropy(R, wiring, competition).tolist() == pytest.approx([expected])


def test_children_that_no_parent_sees_do_not_count():
    wiring = convolution(4, 3, 2)  # one window; seven of the 16 children lie outside
    R = torch.eye(5)[:2].view(2, 1, 5, 1).expand(2, 1, 5, 9 * 3)
    assert assignment_entropy(R, wiring, "field").tolist() == [0, 0]


@pytest.mark.parametrize("pairing", ["child", "stride-1"])
def test_the_entropy_of_the_competition_per_type(pairing):
    """Uniform over the slots of a group is 1, all in its first slot is 0, whatever the number of slots."""
    wiring = convolution(5, 3, 2, pairing=pairing)
    shape = (2, 3, *wiring.windows.shape, 4)  # samples, parent types, windows, slots, child types
    share = wiring.copies[wiring.owners].reciprocal()
    first = torch.zeros(wiring.windows.numel() + 1).index_fill(0, wiring.rivals[:, 0], 1.0)[:-1].view_as(share)
    for by_slot, expected in ((share, 1.0), (first, 0.0)):
        R = by_slot[None, None, :, :, None].expand(shape).transpose(1, 2).flatten(3)
        assert assignment_entropy(R, wiring, "type").tolist() == pytest.approx([expected] * 2)


def test_vital_signs_do_not_depend_on_how_many_images_there_are():
    model = build_model("matrix-capsnet", classes=3, channels=1, size=17, filters=4, types=(2, 3, 3)).eval()
    assert isinstance(model, Classifier)
    images = torch.rand(5, 1, 17, 17, generator=torch.Generator().manual_seed(0))
    alone = [model.health_metrics(image[None]) for image in images]
    for name, value in model.health_metrics(images).items():
        values = [signs[name] for signs in alone]
        assert value == pytest.approx(min(values) if name.endswith("_min") else sum(values) / 5, rel=1e-5)
