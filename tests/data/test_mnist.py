from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robustcaps.data import load_data
from robustcaps.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9], dtype=np.uint8)
NAMES = pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Both datasets, the test files gzipped and the training files plain."""
    for name in ("mnist", "fashion-mnist"):
        (tmp_path / name).mkdir()
        for kind, values in (("images-idx3", PIXELS), ("labels-idx1", LABELS)):
            (tmp_path / name / f"t10k-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(values)))
            (tmp_path / name / f"train-{kind}-ubyte").write_bytes(idx(values[::-1].copy()))
    return tmp_path


@NAMES
@pytest.mark.parametrize(("split", "step"), [("test", 1), ("train", -1)])
def test_idx_files_are_read(folder: Path, name: str, split: str, step: int) -> None:
    data = load_data(name, split=split, data_dir=folder)
    assert data.images.shape == (6, 1, 28, 28)
    assert data.size == 28
    np.testing.assert_array_equal((data.images[:, 0] * 255).round().numpy(), PIXELS[::step])
    assert data.labels.tolist() == LABELS[::step].tolist()
    assert data.factors["category"].tolist() == [data.class_names[label] for label in LABELS[::step]]


@NAMES
def test_training_may_move_images_by_two_pixels(folder: Path, name: str) -> None:
    plain, framed = (load_data(name, split="train", data_dir=folder, crop=crop) for crop in (True, False))
    assert (framed.size, framed.images.shape) == (28, (6, 1, 32, 32))
    assert framed.images[..., 2:-2, 2:-2].equal(plain.images)
    assert framed.images.sum() == pytest.approx(plain.images.sum())


def test_a_limit_takes_the_first_samples(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    data = load_data("mnist", data_dir=folder, limit=2, progress=lambda done, total: told.append((done, total)))
    assert data.labels.tolist() == [3, 1]
    assert told == [(2, 2)]


def write_labels(folder: Path, labels: np.ndarray) -> None:
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


def rewrite(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(gzip.compress(content))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (
            Path.unlink,
            "no file 't10k-images-idx3-ubyte' .or .gz. in the folder .*data get mnist --data-dir .*MNIST Database",
        ),
        (rewrite(idx(LABELS)), "not an idx file of bytes with 3 dimensions: it starts with 00000801"),
        (rewrite(idx(PIXELS[:, 1:])), r"contains \(6, 27, 28\), expected n x 28 x 28"),
        (rewrite(idx(PIXELS)[:-5]), "truncated: 5 bytes are missing"),
        (rewrite(idx(PIXELS) + b"x"), "wrong size: more data than the 6 samples"),
        (rewrite(idx(PIXELS[1:])), "5 images but 6 labels of 'test'"),
        (lambda path: write_labels(path.parent, LABELS + 1), "a label of 'test' is 10, which is not a class"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "truncated: the gzipped file ends early"),
    ],
    ids=["missing", "magic", "shape", "short", "long", "count", "class", "gzip"],
)
def test_what_is_wrong_with_the_files_is_said_in_one_line(
    folder: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(folder / "mnist" / "t10k-images-idx3-ubyte.gz")
    with pytest.raises(UserError, match=complaint) as caught:
        load_data("mnist", data_dir=folder)
    assert "\n" not in str(caught.value)
    assert str(folder / "mnist") in str(caught.value)
