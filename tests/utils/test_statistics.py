from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from robustcaps.utils.statistics import wilson

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
    with pytest.raises(ValueError, match="must lie"):
        wilson(k, n, confidence)
