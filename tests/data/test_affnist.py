from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from robustcaps.data import load_data
from robustcaps.errors import UserError


def write_batch(path: Path, count: int, *, first: int = 0, side: int = 40) -> None:
    """Digits with one white pixel in row 3, in the column of their number."""
    images = np.zeros((count, side, side), np.uint8)
    images[np.arange(count), 3, (first + np.arange(count)) % side] = 255
    labels = ((first + np.arange(count)) % 10).astype(np.uint8)[None]
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"affine_matrix": np.eye(3), "image": images.reshape(count, -1).T, "label_int": labels}
    scipy.io.savemat(path, {"affNISTdata": record})


def test_the_one_file_of_the_test_split(tmp_path: Path) -> None:
    write_batch(tmp_path / "affnist" / "test.mat", 12)
    data = load_data("affnist", data_dir=tmp_path, limit=11)
    assert (data.images.shape, data.size, data.name) == ((11, 1, 40, 40), 40, "affnist")
    assert data.labels.tolist() == [*range(10), 0]
    assert data.images[5].nonzero().tolist() == [[0, 3, 5]] and data.images.max() == 1
    assert data.factors["category"].tolist()[:3] == ["0", "1", "2"]


@pytest.mark.parametrize(("limit", "count"), [(None, 20), (13, 13), (4, 4)])
def test_batches_follow_each_other_and_only_those_needed_are_read(
    tmp_path: Path, limit: int | None, count: int
) -> None:
    for number in (1, 2):
        write_batch(tmp_path / "affnist" / "training_and_validation_batches" / f"{number}.mat", 10, first=10 * number)
    if limit == 4:
        (tmp_path / "affnist" / "training_and_validation_batches" / "2.mat").write_bytes(b"damaged")
    data = load_data("affnist", split="train", data_dir=tmp_path, limit=limit)
    assert len(data) == count and data.images.nonzero()[:, 3].tolist() == [10 + place for place in range(count)]


def test_what_is_missing_or_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    def complaint(split: str = "test") -> str:
        with pytest.raises(UserError) as caught:
            load_data("affnist", split=split, data_dir=tmp_path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "test_batches/1.mat or test.mat is missing. Get the 'transformed' files" in complaint()
    assert "'affine-mnist' is made from MNIST" in complaint("train")
    write_batch(tmp_path / "affnist" / "training_and_validation_batches" / "2.mat", 3)
    assert "training_and_validation_batches/1.mat is missing" in complaint("train")
    write_batch(tmp_path / "affnist" / "test.mat", 3, side=28)
    assert "contains images uint8 (784, 3) and 3 labels, not 1600 x n" in complaint()
    scipy.io.savemat(tmp_path / "affnist" / "test.mat", {"other": np.zeros(3)})
    assert "not a MATLAB file with the images and labels of affNIST" in complaint()
    (tmp_path / "affnist" / "test.mat").write_bytes(b"not a file of MATLAB" * 20)
    assert "not a MATLAB file" in complaint()
