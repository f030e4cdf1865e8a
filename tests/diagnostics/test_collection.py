"""The labels of the calibration models are true, and the report counts wrong verdicts."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.calibration.__main__ import diagnose_model, misjudged_models, report
from benchmarks.calibration.collection import COLLECTION, build_model
from benchmarks.calibration.labels import accuracy
from benchmarks.calibration.proofs import gradient_descent
from benchmarks.calibration.subtle_models import HONEST, MASKED


def test_the_collection_is_large_enough():
    labels = [each.masked for each in COLLECTION.values()]
    assert labels.count(False) >= 12 and labels.count(True) >= 16
    assert len(HONEST) >= 10 and len(MASKED) >= 10
    assert {"toys", "blobs"} <= {each.data for each in COLLECTION.values()}


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTION)
def test_the_label_is_true(name):
    """Its proof beats plain PGD on a masked model, and next to nothing over 40 steps on an honest one."""
    label, model = COLLECTION[name], build_model(name)
    data = label.load_data(100)
    best = accuracy(model, label.proof(model, data, label.eps), data.labels)
    try:
        usual = gradient_descent(model, data, label.eps, steps=20 if label.masked else 40)
    except RuntimeError:  # the model has no gradient
        usual = data.images
    gap = accuracy(model, usual, data.labels) - best
    assert gap >= 0.05 if label.masked else gap <= 0.05


@pytest.mark.parametrize(("name", "verdict"), [("linear", "trusted"), ("detached", "masked")])
def test_a_row_has_the_label_and_the_verdict(name, verdict):
    line = diagnose_model(name, images=40)
    assert line["verdict"] == verdict and line["label"] == {"trusted": "honest", "masked": "masked"}[verdict]
    assert line["corrected"] <= line["naive"] <= line["clean"]


def test_the_report_counts_missed_models_and_false_alarms():
    lines = [
        ("a", 0, "masked", "masked"),
        ("b", 0, "masked", "trusted"),
        ("c", 0, "honest", "masked"),
        ("d", 0, "honest", "trusted"),
        ("a", 1, "masked", "masked"),
        ("b", 1, "masked", "masked"),
        ("c", 1, "honest", "masked"),
        ("d", 1, "honest", "suspicious"),
    ]
    table = pd.DataFrame(lines, columns=["model", "seed", "label", "verdict"])
    table = table.assign(data="blobs", n=60, eps=0.1, confidence=0.9, cpu_seconds=3.0, flagged="reach")
    table = table.assign(clean=1.0, naive=0.5, corrected=0.1, proof=0.1)
    first = table[table["seed"] == 0]
    assert misjudged_models(first) == ["b", "c"]
    assert "| 0 | 1 of 2 (50 %" in report(first) and "seeds give the same" not in report(first)
    text = report(table)
    assert "| 1 | 2 of 2 (100 %" in text and "1 of 2 (50 %, Wilson 95 %: 9 to 91) | 1 of 2 |" in text
    assert "All 2 seeds give the same verdict on 2 of 4 (50 %" in text
    assert "| b | blobs | 0.1 | masked | trusted or masked |" in text
