from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from robustcaps.data import load_data
from robustcaps.errors import UserError

SHADES = {"cat": 10, "dog": 120, "owl": 240}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes, 4 images each for training and 2 for the test; red says the class, green the number."""
    for split, count in (("train", 4), ("test", 2)):
        for name, shade in SHADES.items():
            place = tmp_path / "photos" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8), (shade, number, 0)).save(place / f"{number}.png")
            (place / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize(("split", "count"), [("train", 12), ("test", 6)])
def test_subfolders_are_classes(photos: Path, split: str, count: int) -> None:
    data = load_data("folder", split=split, data_dir=photos, path="photos")
    assert data.images.shape == (count, 3, 8, 8)
    assert data.class_names == tuple(SHADES)
    red = (data.images[:, 0, 0, 0] * 255).round().int().tolist()
    assert red == [list(SHADES.values())[label] for label in data.labels.tolist()]
    assert list(data.factors["category"]) == [data.class_names[label] for label in data.labels.tolist()]
    assert data.factors["file"].str.startswith(f"{split}/").all() and data.factors["file"].is_unique


def test_classes_are_in_the_order_that_is_asked_for(photos: Path) -> None:
    order = ["owl", "cat", "dog"]
    data = load_data("folder", data_dir=photos, path="photos", classes=order)
    red = (data.images[:, 0, 0, 0] * 255).round().int().tolist()
    assert red == [SHADES[order[label]] for label in data.labels.tolist()]
    with pytest.raises(UserError, match="must name each of cat, dog, owl once"):
        load_data("folder", data_dir=photos, path="photos", classes=["cat", "dog", "cow"])


def test_a_limited_load_is_a_balanced_prefix(photos: Path) -> None:
    some, more = (load_data("folder", split="train", data_dir=photos, path="photos", limit=limit) for limit in (3, 8))
    assert some.labels.tolist() == [0, 1, 2]
    assert torch.equal(some.images, more.images[:3])


def test_images_are_scaled_and_turned_grey_on_demand(photos: Path) -> None:
    Image.new("L", (20, 12), 50).save(photos / "photos" / "test" / "cat" / "0.png")
    data = load_data("folder", data_dir=photos, path=str(photos / "photos"), size=6, grey=True)
    assert data.images.shape == (6, 1, 6, 6)


def _other_size(place: Path) -> None:
    Image.new("RGB", (8, 9)).save(place / "test" / "dog" / "9.png")


def _no_images(place: Path) -> None:
    for image in (place / "test" / "owl").iterdir():
        image.unlink()


def _not_square(place: Path) -> None:
    Image.new("RGB", (8, 9)).save(next(iter(sorted((place / "test" / "cat").iterdir()))))


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "size": (_other_size, r"dog/9\.png has 8x9 pixels, .* has 8x8; .* Set size"),
    "shape": (_not_square, r"^dataset 'folder': [^,]*cat/0\.png has 8x9 pixels; images must be squares"),
    "class": (lambda place: (place / "train" / "emu").mkdir(), "in one only: emu"),
    "empty": (_no_images, r"no images .* in .*owl"),
    "damaged": (lambda place: (place / "test" / "cat" / "0.png").write_bytes(b"GIF"), r"cat/0\.png: cannot be read"),
    "missing": (lambda place: place.rename(place.with_name("elsewhere")), r"expected .*photos/test/CLASS/IMAGE\.png"),
}


@pytest.mark.parametrize(("damage", "complaint"), MISTAKES.values(), ids=MISTAKES)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    photos: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(photos / "photos")
    with pytest.raises(UserError, match=complaint) as caught:
        load_data("folder", data_dir=photos, path="photos")
    assert "\n" not in str(caught.value)


def test_the_path_is_required(photos: Path) -> None:
    with pytest.raises(UserError, match="path"):
        load_data("folder", data_dir=photos)
