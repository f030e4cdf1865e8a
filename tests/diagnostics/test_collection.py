"""The labels of the calibration models are true, and the report counts wrong verdicts."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.calibration.__main__ import diagnose_model, misjudged_models, report
from benchmarks.calibration.collection import COLLECTION, accuracy, baseline_pgd, build_model
from benchmarks.calibration.networks import EPS, blobs, margin_pgd

DATA = blobs(100, seed=2)


def test_the_collection_is_large_enough():
    labels = [each.masked for each in COLLECTION.values()]
    assert labels.count(False) >= 12 and labels.count(True) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTION)
def test_the_label_is_true(name):
    """Its proof beats the baseline on a masked model, and gains next to nothing on an honest one."""
    label, model = COLLECTION[name], build_model(name)
    best = accuracy(model, label.proof(model, DATA), DATA.labels)
    if label.masked:
        assert accuracy(model, baseline_pgd(model, DATA), DATA.labels) - best >= 0.1
    else:
        usual = margin_pgd(model, DATA.images, DATA.labels, EPS, steps=20)
        assert accuracy(model, usual, DATA.labels) - best <= 0.05


@pytest.mark.parametrize(("name", "verdict"), [("linear", "trusted"), ("detached", "masked")])
def test_a_row_has_the_label_and_the_verdict(name, verdict):
    line = diagnose_model(name, images=40)
    assert line["verdict"] == verdict and line["label"] == {"trusted": "honest", "masked": "masked"}[verdict]
    assert line["corrected"] <= line["naive"] <= line["clean"]


def test_the_report_counts_missed_models_and_false_alarms():
    lines = [
        ("a", "masked", "masked"),
        ("b", "masked", "trusted"),
        ("c", "honest", "masked"),
        ("d", "honest", "trusted"),
    ]
    table = pd.DataFrame(lines, columns=["model", "label", "verdict"])
    table = table.assign(clean=1.0, naive=0.5, corrected=0.1, seconds=3.0, flagged="reach")
    assert misjudged_models(table) == ["b", "c"]
    assert "Recall: 1 of 2 masked models are found (50 %" in report(table)
    assert "False alarms: 1 of 2 honest ones are called masked (50 %" in report(table)
