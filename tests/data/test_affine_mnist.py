from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robustcaps.data import load_data
from tests.data.test_multimnist import write_mnist


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_mnist(tmp_path)
    return tmp_path


@pytest.mark.parametrize("split", ["train", "test"])
def test_shifted_digits_are_the_digits_somewhere_else(root: Path, split: str) -> None:
    data = load_data("affine-mnist", split=split, data_dir=root, transform="shift")
    digits = load_data("mnist", split=split, data_dir=root)
    assert data.images.shape[1:] == (1, 40, 40) and data.size == 40 and torch.equal(data.labels, digits.labels)
    for row, (right, down) in enumerate(data.factors[["right", "down"]].astype(int).itertuples(index=False)):
        expected = torch.zeros(40, 40)
        expected[16 + down : 24 + down, 14 + right : 26 + right] = digits.images[row, 0, 10:18, 8:20]
        assert torch.equal(data.images[row, 0], expected)
    assert len(set(data.factors["right"])) > 10


def test_affine_maps_stay_in_their_ranges_and_cut_nothing_off(root: Path) -> None:
    data = load_data("affine-mnist", data_dir=root)
    assert data.factors["rotation"].abs().max() <= 20 and data.factors["rotation"].std() > 5
    assert data.factors["scaling"].abs().max() <= 0.2 and data.factors["shearing"].abs().max() <= 11.4
    digits = load_data("mnist", data_dir=root)
    scales = 1 + torch.tensor(data.factors["scaling"].to_numpy())
    ink, expected = data.images.sum((1, 2, 3)), digits.images.sum((1, 2, 3)) * scales.square()
    assert ((ink / expected - 1).abs() < 0.05).all()


def test_samples_do_not_depend_on_the_limit_and_splits_differ(root: Path) -> None:
    data = load_data("affine-mnist", data_dir=root)
    few = load_data("affine-mnist", data_dir=root, limit=5)
    assert torch.equal(few.images, data.images[:5]) and few.factors.equals(data.factors[:5])
    other = load_data("affine-mnist", split="train", data_dir=root, limit=5)
    assert not other.factors["rotation"].equals(few.factors["rotation"])
