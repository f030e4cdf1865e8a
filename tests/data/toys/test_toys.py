from __future__ import annotations

import pytest
import torch

from robustcaps.data import load_data
from robustcaps.data.protocol import CATEGORIES


def test_a_limited_load_is_a_balanced_prefix() -> None:
    few, more = load_data("toys", limit=10), load_data("toys", limit=95)
    assert few.images.shape == (10, 1, 32, 32)
    assert (few.size, few.class_names, few.name, few.split) == (32, CATEGORIES, "toys", "test")
    assert few.labels.tolist() == [0, 1, 2, 3, 4] * 2
    assert torch.equal(few.images, more.images[:10])
    assert few.factors.equals(more.factors[:10])
    assert [CATEGORIES[label] for label in more.labels.tolist()] == more.factors["category"].tolist()


def test_eyes_are_channels_and_crops_are_centres() -> None:
    left, right = (load_data("toys", limit=3, eyes=eye) for eye in ("left", "right"))
    both = load_data("toys", limit=3, eyes="both", crop=False)
    assert both.images.shape == (3, 2, 48, 48)
    assert both.size == 32
    assert torch.equal(both.images[:, :, 8:40, 8:40], torch.cat([left.images, right.images], dim=1))
    assert not torch.equal(left.images, right.images)


def test_splits_show_different_instances() -> None:
    train, test = (load_data("toys", split=split, limit=90).factors for split in ("train", "test"))
    assert set(train["instance"]) == {4, 6, 7, 8, 9}
    assert set(test["instance"]) == {0, 1, 2, 3, 5}


def test_progress_counts_samples() -> None:
    told: list[tuple[int, int]] = []
    load_data("toys", limit=95, progress=lambda done, total: told.append((done, total)))
    assert told == [(90, 95), (95, 95)]


@pytest.mark.slow
def test_a_whole_split_is_there_when_the_limit_exceeds_it() -> None:
    data = load_data("toys", limit=10**6)
    assert len(data) == len(data.factors) == 24_300
    assert torch.bincount(data.labels).tolist() == [4860] * 5
