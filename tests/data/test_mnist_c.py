from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import robustcaps as rc
from robustcaps.data import load_data
from robustcaps.data.mnist_c import Corruption
from robustcaps.errors import UserError

CORRUPTIONS = get_args(Corruption)


def write_corruptions(root: Path, names: tuple[str, ...] = CORRUPTIONS, count: int = 4) -> None:
    """Images as bright as the number of their corruption, and one row brighter than that."""
    for number, name in enumerate(names):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((count, 28, 28, 1), number, np.uint8)
        pixels[np.arange(count), np.arange(count)] = 255
        np.save(folder / "test_images.npy", pixels)
        np.save(folder / "test_labels.npy", np.arange(count))


@pytest.mark.parametrize("folder", ["mnist_c", "mnist-c"])
def test_all_corruptions_come_in_turn(tmp_path: Path, folder: str) -> None:
    write_corruptions(tmp_path / folder)
    data = load_data("mnist-c", data_dir=tmp_path)
    assert data.images.shape == (60, 1, 28, 28) and data.labels.tolist() == [
        label for label in range(4) for _ in "c" * 15
    ]
    assert data.factors["corruption"].tolist()[:16] == [*CORRUPTIONS, "brightness"]
    assert (data.images[:, 0, 27, 0] * 255).round().tolist() == [*range(15)] * 4
    assert (data.images[17] == 1).nonzero()[:, 1].unique().tolist() == [1]
    first = load_data("mnist-c", data_dir=tmp_path, limit=17)
    assert (first.images == data.images[:17]).all() and first.factors["digit"].tolist() == [0] * 15 + [1] * 2


def test_one_corruption(tmp_path: Path) -> None:
    write_corruptions(tmp_path / "mnist_c")
    data = load_data("mnist-c", data_dir=tmp_path, corruption="fog", limit=3)
    assert len(data) == 3 and set(data.factors["corruption"]) == {"fog"}
    with pytest.raises(UserError, match="corruption"):
        load_data("mnist-c", data_dir=tmp_path, corruption="snow")


def test_models_are_those_of_mnist() -> None:
    assert rc.load_model("cnn-small", data="mnist-c").state_dict().keys()


def test_what_is_missing_or_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    def complaint() -> str:
        with pytest.raises(UserError) as caught:
            load_data("mnist-c", data_dir=tmp_path, corruption="fog")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert (
        "mnist_c/fog/test_images.npy is missing. Get mnist_c.zip from https://zenodo.org/records/3239543" in complaint()
    )
    write_corruptions(tmp_path / "mnist_c", ("fog",))
    images, labels = (tmp_path / "mnist_c" / "fog" / f"test_{part}.npy" for part in ("images", "labels"))
    np.save(labels, np.arange(3))
    assert "contains uint8 (4, 28, 28, 1) for 3 labels, not bytes n x 28 x 28" in complaint()
    np.save(labels, np.array([0, 1, 2, 10]))
    assert "contains a label that is not a class" in complaint()
    images.write_bytes(b"not an array")
    assert "not a file of a NumPy array" in complaint()
    np.save(images, np.array([{"pickled": 1}], dtype=object), allow_pickle=True)
    assert "not a file of a NumPy array" in complaint()


def test_corruptions_of_different_sizes_are_refused(tmp_path: Path) -> None:
    write_corruptions(tmp_path / "mnist_c")
    write_corruptions(tmp_path / "mnist_c", ("fog",), count=3)
    with pytest.raises(UserError, match="different numbers of samples"):
        load_data("mnist-c", data_dir=tmp_path)
