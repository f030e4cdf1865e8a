from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robustcaps.data import load_data
from robustcaps.data.base import Data
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Register a dataset that notes what it is asked for."""
    calls: list[dict[str, object]] = []

    def noted(*, split: str, limit: int | None, data_dir: Path, progress: object, shade: float = 0.5) -> Data:
        """Grey images."""
        calls.append({"split": split, "limit": limit, "data_dir": data_dir, "progress": progress, "shade": shade})
        return Data(torch.full((3, 1, 4, 4), shade), torch.zeros(3, dtype=torch.int64), ("grey",))

    DATASETS.names()
    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
    DATASETS.add("noted", noted)
    return calls


def test_a_plugin_dataset_is_loaded_by_name(asked: list[dict[str, object]]) -> None:
    data = load_data("noted", split="train", limit=7, shade=0.25)
    assert (data.name, data.split) == ("noted", "train")
    assert data.images.unique().tolist() == [0.25]
    assert asked[0]["limit"] == 7


def test_skipped_samples_are_the_first_ones(asked: list[dict[str, object]]) -> None:
    all_toys = load_data("toys", limit=6)
    rest = load_data("toys", limit=4, skip=2)
    assert torch.equal(rest.images, all_toys.images[2:])
    assert rest.factors.equals(all_toys.factors.iloc[2:])
    with pytest.raises(UserError, match="skip = 3 leaves nothing of the 3 samples of 'test'"):
        load_data("noted", skip=3)


def test_files_are_looked_for_where_the_user_says(
    asked: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ROBUSTCAPS_DATA", raising=False)
    load_data("noted")
    monkeypatch.setenv("ROBUSTCAPS_DATA", str(tmp_path / "by-environment"))
    load_data("noted")
    load_data("noted", data_dir=tmp_path / "by-argument")
    assert [call["data_dir"] for call in asked] == [Path("data"), tmp_path / "by-environment", tmp_path / "by-argument"]


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("toyz", {}, "unknown dataset 'toyz'. Did you mean 'toys'"),
        ("toys", {"split": "validation"}, "unknown split 'validation'. Choose from: train, test"),
        ("toys", {"limit": 0}, "limit must be at least 1, not 0"),
        ("toys", {"skip": -1}, "skip must not be negative, but is -1"),
        ("toys", {"eye": "left"}, "unknown option 'eye'. Did you mean 'eyes'"),
        ("toys", {"eyes": "middle"}, "dataset 'toys': eyes: .*'left', 'right' or 'both'.*middle"),
        ("toys", {"crop": "perhaps"}, "dataset 'toys': crop: "),
    ],
)
def test_wrong_requests_are_answered_in_one_line(name: str, arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        load_data(name, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_every_dataset_has_a_line_of_help() -> None:
    assert {"toys", "smallnorb", "mnist", "fashion-mnist", "multimnist", "cifar10", "eth80"} <= set(DATASETS.names())
    assert all(DATASETS.entry(name).help for name in DATASETS.names())
