from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from robustcaps.data import load_data
from robustcaps.data.base import Data
from robustcaps.errors import UserError
from tests.data.test_mnist import idx

DIGITS = 37


def write_mnist(root: Path, classes: int = 10) -> None:
    """Digits that are a square of a brightness of their own, so that a picture tells which ones it is made of."""
    (root / "mnist").mkdir()
    for number, prefix in enumerate(("train", "t10k")):
        pixels = np.zeros((DIGITS, 28, 28), np.uint8)
        pixels[:, 10:18, 8:20] = (100 + 2 * np.arange(DIGITS) + number)[:, None, None]
        labels = (np.arange(DIGITS) % classes).astype(np.uint8)
        (root / "mnist" / f"{prefix}-images-idx3-ubyte").write_bytes(idx(pixels))
        (root / "mnist" / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_mnist(tmp_path)
    return tmp_path


def drawn_by_hand(data: Data, root: Path, row: int) -> torch.Tensor:
    """One picture, digit by digit, from what its factors say."""
    digits = load_data("mnist", split=data.split, data_dir=root)
    factors = data.factors.iloc[row]
    picture = torch.zeros(36, 36)
    for prefix in ("", "other_"):
        top, left = 4 + factors[f"{prefix}down"], 4 + factors[f"{prefix}right"]
        picture[top : top + 28, left : left + 28] += digits.images[factors[f"{prefix}digit"], 0]
    return picture.clamp(max=1)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_picture_is_two_moved_digits_added_and_cut_off_at_one(root: Path, split: str) -> None:
    data = load_data("multimnist", split=split, data_dir=root)
    assert (data.images.shape, data.size, data.split) == ((DIGITS, 1, 36, 36), 36, split)
    for row in range(DIGITS):
        torch.testing.assert_close(data.images[row, 0], drawn_by_hand(data, root, row))
    assert bool((data.images == 1).any())  # some overlap so much that they are cut off


def test_labels_and_factors_name_the_two_digits(root: Path) -> None:
    data = load_data("multimnist", data_dir=root, count=900)
    classes = load_data("mnist", data_dir=root).labels.numpy()
    assert data.labels.tolist() == classes[data.factors["digit"].to_numpy()].tolist()
    assert data.factors["other"].tolist() == classes[data.factors["other_digit"].to_numpy()].tolist()
    assert data.factors["category"].tolist() == [str(label) for label in data.labels.tolist()]
    moves = data.factors[["down", "right", "other_down", "other_right"]]
    assert all(set(moves[name]) == set(range(-4, 5)) for name in moves)
    assert data.factors[["digit", "other_digit"]].nunique().tolist() == [DIGITS, DIGITS]


def test_every_prefix_is_a_fair_sample(root: Path) -> None:
    whole = load_data("multimnist", data_dir=root, count=270)
    others = torch.tensor(whole.factors["other"].to_numpy())
    for ten in range(0, 270, 10):
        assert sorted(whole.labels[ten : ten + 10].tolist()) == list(range(10))
        assert sorted(others[ten : ten + 10].tolist()) == list(range(10))
    pairs = set(zip(whole.labels[:90].tolist(), others[:90].tolist(), strict=True))
    assert len(pairs) == 90 and all(one != other for one, other in pairs)
    some = load_data("multimnist", data_dir=root, count=270, limit=33)
    assert some.images.equal(whole.images[:33]) and some.factors.equals(whole.factors[:33])


def test_pairs_are_the_same_everywhere_and_always(root: Path) -> None:
    first = load_data("multimnist", data_dir=root).factors.iloc[[0, 36]]
    assert first.drop(columns="category").to_numpy().tolist() == [
        [2, 20, 12, -4, 4, 1, -1],
        [4, 16, 14, 2, -3, 2, -3],
    ]


def test_a_digit_is_used_again_only_when_all_of_its_class_were(root: Path) -> None:
    data = load_data("multimnist", data_dir=root, count=80)
    ones = data.factors[data.factors["category"] == "1"]["digit"].tolist()
    assert sorted(ones[:4]) == sorted(ones[4:]) == [1, 11, 21, 31]


def test_blocks_of_pairs_are_told(root: Path) -> None:
    told: list[tuple[int, int]] = []
    load_data("multimnist", data_dir=root, count=2500, progress=lambda done, total: told.append((done, total)))
    assert told == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data get mnist"):
        load_data("multimnist", data_dir=tmp_path)
    with pytest.raises(UserError, match="dataset 'multimnist': count: "):
        load_data("multimnist", data_dir=tmp_path, count=0)
    write_mnist(tmp_path, classes=7)
    with pytest.raises(UserError, match="mnist: contains no digit 7"):
        load_data("multimnist", data_dir=tmp_path)
