from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robustcaps.data import load_data
from robustcaps.errors import UserError

CATEGORIES = ("apple", "car", "cow", "cup", "dog", "horse", "pear", "tomato")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pixels say category, object and azimuth; the cars are numbered from 4 on, as some are in ETH-80."""
    root = tmp_path_factory.mktemp("data")
    for number, name in enumerate(CATEGORIES, start=1):
        for thing in range(1, 11):
            place = root / "eth80" / str(number) / str(thing)
            place.mkdir(parents=True)
            for view in range(41):
                stem = f"{name}{thing + 3 if name == 'car' else thing}-{view % 4 * 22:03}-{view:03}"
                pixels = np.repeat(np.array((number, thing, view), dtype=np.uint8), 32)
                Image.fromarray(np.tile(pixels, (96, 1))).save(place / f"{stem}.png")
    return root


@pytest.mark.parametrize(("split", "objects"), [("train", [1, 3, 5, 7, 9]), ("test", [2, 4, 6, 8, 10])])
def test_half_of_the_objects_are_held_out(folder: Path, split: str, objects: list[int]) -> None:
    data = load_data("eth80", split=split, data_dir=folder, crop=False)
    assert data.images.shape == (1640, 1, 48, 48)
    assert (data.size, data.class_names) == (32, CATEGORIES)
    assert sorted(data.factors["instance"].unique()) == objects
    assert not data.factors.duplicated().any()
    written = (data.images[:, 0, 0, [0, 16, 32]] * 255).round().to(torch.int64)
    assert torch.equal(written[:, 0] - 1, data.labels)
    assert written[:, 1].tolist() == data.factors["instance"].tolist()
    assert written[:, 2].tolist() == data.factors["azimuth"].tolist()
    assert [CATEGORIES[label] for label in data.labels.tolist()] == data.factors["category"].tolist()


def test_a_limited_load_is_a_balanced_prefix(folder: Path) -> None:
    some, more = (load_data("eth80", data_dir=folder, limit=limit) for limit in (16, 120))
    assert some.labels.tolist() == list(range(8)) * 2
    assert torch.equal(some.images, more.images[:16])
    assert more.factors["instance"].nunique() == 5


@pytest.mark.parametrize(("views", "count"), [("familiar-azimuths", 41), ("novel-elevations", 31)])
def test_views_are_told_by_the_names_of_files(folder: Path, views: str, count: int) -> None:
    """Here all azimuths are below 50 degrees, and a view in four is at each of the polar angles 0, 22, 44 and 66."""
    data = load_data("eth80", data_dir=folder, views=views)
    assert len(data) == 8 * 5 * count
    assert data.labels[:8].sort().values.tolist() == list(range(8))
    written = (data.images[:, 0, 0, 31] * 255).round().to(torch.int64)
    assert written.tolist() == data.factors["azimuth"].tolist()
    assert set(data.factors["polar"]) == ({0, 22, 44} if views == "novel-elevations" else {0, 22, 44, 66})


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (Path.unlink, "contains 40 files 'cow.*Get the cropped images of ETH-80 .*--data-dir"),
        (lambda path: path.write_bytes(b"no picture"), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "cannot be read"),
        (
            lambda path: Image.new("RGB", (96, 96)).save(path),
            r"contains uint8 \(96, 96, 3\), expected a 96x96 greyscale image",
        ),
        (lambda path: Image.new("L", (64, 96)).save(path), r"contains uint8 \(96, 64\)"),
    ],
    ids=["missing", "foreign", "truncated", "colour", "size"],
)
def test_what_is_wrong_with_a_picture_is_said_in_one_line(
    folder: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    path = folder / "eth80" / "3" / "2" / "cow2-000-000.png"
    sound = path.read_bytes()
    damage(path)
    try:
        with pytest.raises(UserError, match=complaint) as caught:
            load_data("eth80", data_dir=folder)
    finally:
        path.write_bytes(sound)
    assert "\n" not in str(caught.value)
    assert str(path.parent) in str(caught.value)
