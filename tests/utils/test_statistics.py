from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from robustcaps.utils.statistics import mean_interval, wilson

counts = st.integers(1, 100_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_agrees_with_scipy_and_holds_the_share(pair, confidence):
    k, n = pair
    low, high = wilson(k, n, confidence)
    expected = binomtest(k, n).proportion_ci(confidence_level=confidence, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= k / n <= high <= 1


def test_wilson_takes_arrays_and_broadcasts():
    k = np.array([0, 5, 10])
    low, high = wilson(k, 10)
    assert low.shape == high.shape == (3,)
    assert (low[1], high[1]) == wilson(5, 10)
    assert low[0] == 0
    assert high[2] == 1


def test_no_sample_tells_nothing():
    low, high = wilson(0, 0)
    assert low == 0
    assert high == 1


@pytest.mark.parametrize(
    ("k", "n", "confidence"), [(3, 2, 0.95), (-1, 2, 0.95), (np.nan, 2, 0.95), (1, 2, 1.0), (1, 2, 0)]
)
def test_impossible_counts_are_refused(k, n, confidence):
    with pytest.raises(ValueError, match="must be"):
        wilson(k, n, confidence)


@pytest.mark.parametrize("values", [[2.0] * 9, [0.0, 1.0] * 50, [0.0] * 99 + [100.0]])
def test_the_interval_of_a_mean_contains_it_and_is_deterministic(values):
    mean, low, high = mean_interval(pd.Series(values))
    assert (mean, low, high) == mean_interval(pd.Series(values))
    assert low <= mean <= high and mean == pytest.approx(sum(values) / len(values))
    assert (low == high) == (len(set(values)) == 1)


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    values = pd.Series([0.0, 1.0] * 50)
    _, low, high = mean_interval(values)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 10, rel=0.1)


def test_the_interval_of_a_mean_needs_values():
    assert all(math.isnan(value) for value in mean_interval([]))
    assert mean_interval([3.0]) == (3.0, 3.0, 3.0)
