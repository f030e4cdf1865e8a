"""The proofs of the collection's labels, and how verdicts on it are reported."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.calibration.__main__ import judge, report, wrong
from benchmarks.calibration.collection import COLLECTION, EPS, accuracy, attack, blobs, specimen, textbook

DATA = blobs(100, seed=2)


def test_the_collection_is_large_enough():
    labels = [each.masked for each in COLLECTION.values()]
    assert labels.count(False) >= 12 and labels.count(True) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTION)
def test_the_label_is_true(name):
    """A masked model falls to those who know its secret; on an honest one far more effort gains next to nothing."""
    label, model = COLLECTION[name], specimen(name)
    best = accuracy(model, label.proof(model, DATA), DATA.labels)
    if label.masked:
        assert accuracy(model, textbook(model, DATA), DATA.labels) - best >= 0.1
    else:
        usual = attack(model, DATA.images, DATA.labels, EPS, steps=20)
        assert accuracy(model, usual, DATA.labels) - best <= 0.05


@pytest.mark.parametrize(("name", "verdict"), [("linear", "trusted"), ("detached", "masked")])
def test_a_model_is_judged_beside_its_label(name, verdict):
    line = judge(name, images=40)
    assert line["verdict"] == verdict and line["label"] == {"trusted": "honest", "masked": "masked"}[verdict]
    assert line["corrected"] <= line["naive"] <= line["clean"]


def test_the_report_counts_what_was_missed_and_who_was_accused():
    lines = [
        ("a", "masked", "masked"),
        ("b", "masked", "trusted"),
        ("c", "honest", "masked"),
        ("d", "honest", "trusted"),
    ]
    table = pd.DataFrame(lines, columns=["model", "label", "verdict"])
    table = table.assign(clean=1.0, naive=0.5, corrected=0.1, seconds=3.0, flagged="reach")
    assert wrong(table) == ["b", "c"]
    assert "Recall: 1 of 2 masked models are found (50 %" in report(table)
    assert "False alarms: 1 of 2 honest ones are called masked (50 %" in report(table)
