"""Paired and unpaired differences, against what is known of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.analysis.run_comparison.changes import list_changes
from robustcaps.analysis.run_comparison.differences import compare_paired
from robustcaps.utils.statistics import interval_difference, mcnemar, wilson


def test_pairs_are_compared_on_their_samples():
    before, after = np.array([1.0] * 30 + [0.0] * 10), np.array([0.0] * 12 + [1.0] * 18 + [1.0] * 2 + [0.0] * 8)
    (line,) = compare_paired([np.stack([before, after])])
    assert line["n"] == 40 and line["first"] == 0.75 and line["second"] == 0.5
    assert line["difference"] == pytest.approx(-0.25)
    assert line["difference_low"] < -0.25 < line["difference_high"] < 0
    assert line["p"] == pytest.approx(float(mcnemar(12, 2)))


def test_equal_pairs_do_not_differ_and_pairs_of_any_size_stand_in_their_place():
    small, large = np.ones((2, 3)), np.stack([np.zeros(5), np.full(5, 0.5)])
    first, none, second = compare_paired([small, np.empty((2, 0)), large])
    assert (first["difference"], first["difference_low"], first["difference_high"], first["p"]) == (0, 0, 0, 1)
    assert none == {} and second["difference"] == 0.5 and second["n"] == 5


@given(st.integers(0, 60), st.integers(0, 80))
def test_unpaired_p_and_interval_agree(a, b):
    first, second = ((k / n, *map(float, wilson(k, n))) for k, n in ((a, 60), (b, 80)))
    difference, low, high, p = interval_difference(first, second)
    assert low <= difference <= high
    assert (p < 0.05) == (low > 0 or high < 0)
    assert interval_difference(second, first) == pytest.approx((-difference, -high, -low, p))


def test_unpaired_intervals_are_those_of_newcombe():
    first, second = ((k / n, *map(float, wilson(k, n))) for k, n in ((56, 70), (48, 80)))
    assert interval_difference(first, second)[:3] == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def record(*, models=("cnn",), steps=10, weights="a" * 64, versions=None, code="x"):
    settings = {"model": {"digest": weights}, "attack": {"goal": "untargeted", "options": {"steps": steps}}, "seed": 0}
    cells = [
        {"kind": "attack", "names": {"suite": "s", "model": model, "data": "toys", "attack": "bim"}}
        | {"settings": {**settings, "code": code}}
        for model in models
    ]
    return {"cells": cells, "versions": versions or {}, "commit": None}


@pytest.mark.parametrize(
    ("first", "second", "lines"),
    [
        ({}, {}, []),
        ({}, {"models": ("cnn", "caps")}, [("model", "caps", "", "absent", "present")]),
        ({}, {"steps": 20}, [("attack", "bim", "options.steps", "10", "20")]),
        ({}, {"weights": "b" * 64}, [("model", "cnn on toys", "weights", "a" * 8, "b" * 8)]),
        ({}, {"versions": {"torch": "2.7"}}, [("version", "torch", "", "absent", "2.7")]),
        ({}, {"code": "y"}, [("code", "of 1 of 1 shared cells", "", "one version", "another version")]),
    ],
)
def test_changes_of_settings_are_named(first, second, lines):
    found = list_changes(record(**first), record(**second))
    assert list(found.itertuples(index=False, name=None)) == lines
