from __future__ import annotations

import csv
import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from robustcaps.cli.app import main
from robustcaps.cli.progress import TrainBars
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS
from robustcaps.training.checkpoint import LogRow
from robustcaps.training.health import count_classes, describe_predictions, effective_number, has_collapsed
from tests import tiny
from tests.training.test_training import BEFORE, RecordedProgress, _tiny_things, run  # noqa: F401


def test_a_collapsed_training_stops_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("robustcaps.training.loop.MIN_STEPS_BEFORE_COLLAPSE", 10)  # two epochs
    progress = RecordedProgress()
    problem = (
        r"tiny-a on bars has collapsed: after epoch 3 of 6 it predicts standing 72 for 72 training samples "
        r"\([23].% correct\)\. So did epoch 2\. "
        r"Try a lower learning rate \(--lr 0\.007\) or another --seed in a new folder \(--out\)\. "
        r"See .*log\.csv; resuming in the same folder stops here again\."
    )
    with pytest.raises(UserError, match=problem):
        run(tmp_path, options={"fault": "collapse"}, epochs=6, lr=0.02, progress=progress)
    assert [row["predictions"] for row in progress.epochs] == ["0 72 0"] * 3
    assert len(progress.warnings) == 1
    assert "has collapsed: after epoch 2" in progress.warnings[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.safetensors", "log.csv"]
    again = RecordedProgress()
    with pytest.raises(UserError, match=problem):
        run(tmp_path, options={"fault": "collapse"}, epochs=6, lr=0.02, progress=again)
    assert not again.steps
    with pytest.raises(UserError, match="choose another folder"):
        run(tmp_path, options={"fault": "collapse"}, epochs=6, lr=0.02, resume=False)
    run(tmp_path / "another", epochs=6, lr=0.007)


def test_one_collapsed_epoch_is_but_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("robustcaps.training.loop.MIN_STEPS_BEFORE_COLLAPSE", 10)
    progress = RecordedProgress()
    run(tmp_path, options={"fault": "collapse"}, epochs=2, progress=progress)
    assert ["has collapsed" in message for message in progress.warnings] == [True]


def test_a_collapsed_training_is_one_line_of_the_command(tmp_path, monkeypatch, capsys):
    command = "robustcaps train tiny --data bars --set fault=collapse --batch-size 1 --epochs 9 --device cpu --out"
    monkeypatch.setattr(sys, "argv", [*command.split(), str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: tiny-a on bars has collapsed: after epoch 8 of 9 it predicts")
    assert said.err.count("\n") == 1
    assert said.out.count("classes 1.0/3") == 8


@pytest.mark.parametrize(
    ("predictions", "labels", "accuracy", "collapsed"),
    [
        ([500, 0, 0, 0, 0], [100] * 5, 0.2, True),
        ([250, 250, 0, 0, 0], [100] * 5, 0.29, True),
        ([250, 250, 0, 0, 0], [100] * 5, 0.31, False),  # it has learnt something
        ([100, 140, 100, 100, 60], [100] * 5, 0.2, False),  # guesses, but all classes
        ([100, 0], [52, 48], 0.52, True),
        ([60, 40], [52, 48], 0.52, False),
        ([90, 10], [90, 10], 0.95, False),
        ([100], [100], 1.0, False),
    ],
)
def test_collapsed_is_few_classes_at_the_accuracy_of_a_guess(predictions, labels, accuracy, collapsed):
    row: LogRow = {"train_accuracy": accuracy, "predicted_classes": effective_number(predictions)}
    assert has_collapsed(row, labels) is collapsed


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any))
def test_the_effective_number_of_classes_lies_between_one_and_all_that_occur(counts):
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    assert count_classes(labels, len(counts)) == counts
    assert 1 - 1e-9 <= effective_number(counts) <= sum(count > 0 for count in counts) + 1e-9
    assert effective_number([7 for _ in counts]) == pytest.approx(len(counts))


def test_a_message_names_the_most_frequent_classes():
    assert describe_predictions({"predictions": "0 3 9"}, ("a", "b", "c")) == "c 9, b 3"
    many = describe_predictions({"predictions": "1 2 3 4 5 6 7"}, tuple("abcdefg"))
    assert many == "g 7, f 6, e 5, d 4, c 3, others 3"


SIGNS = ("activation", "saturated", "sigma", "sigma_min", "entropy")
CAPSNET = {"filters": 4, "types": [2, 3, 3]}


@pytest.mark.parametrize("competition", ["field", "position"])
def test_the_vital_signs_of_matrix_capsules_are_logged(tmp_path, wide_bars, competition):
    run(tmp_path, "matrix-capsnet", data=wide_bars, epochs=2, options={**CAPSNET, "competition": competition})
    with (tmp_path / "log.csv").open() as file:
        first, last = csv.DictReader(file)
    signs = [f"{layer}_{sign}" for layer in ("first", "second", "classes") for sign in SIGNS]
    assert list(first) == [*BEFORE, "predicted_classes", "predictions", *signs, "lr", "seconds"]
    for layer in ("first", "second", "classes"):
        activation, saturated, sigma, least, uniform = (float(last[f"{layer}_{sign}"]) for sign in SIGNS)
        assert 0 < activation < 1
        assert 0 <= saturated <= 1
        assert math.sqrt(0.1) - 1e-6 <= least < sigma
        assert 0.5 < uniform < 1


@pytest.fixture
def wide_bars() -> str:
    """Bars as wide as matrix capsules need them."""
    DATASETS.add("wide", lambda *, split, limit=None, **_: tiny.draw(limit or 48, seed=len(split), side=17))
    return "wide"


def test_a_resumed_training_keeps_the_columns_of_its_log(tmp_path, wide_bars):
    settings: dict[str, Any] = {"model": "matrix-capsnet", "data": wide_bars, "epochs": 2, "options": CAPSNET}
    run(tmp_path / "undisturbed", **settings)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", **settings, progress=RecordedProgress((2, 1)))
    run(tmp_path / "cut", **settings)
    one, two = ((tmp_path / name / "log.csv").read_text().splitlines() for name in ("undisturbed", "cut"))
    assert [line.rsplit(",", 1)[0] for line in one] == [line.rsplit(",", 1)[0] for line in two]  # all but the seconds


def test_the_line_of_an_epoch_tells_how_many_classes_are_predicted():
    with TrainBars(Console(record=True, width=200)) as bars:
        bars.started(epochs=5, steps=10, done=0)
        signs = {"predicted_classes": 4.81, "predictions": "112 98 101 95 94", "first_entropy": 0.9}
        bars.epoch_end(2, {"epoch": 2, "loss": 0.25, "validation_accuracy": None, **signs, "seconds": 7.0})
    assert "epoch 2 of 5: loss 0.25, seconds 7, classes 4.8/5" in bars.console.export_text().splitlines()
