from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, sem
from scipy.stats import t as student

from robustcaps.utils.statistics import (
    clopper_pearson_lower,
    crossed_difference,
    crossed_mean,
    mean_interval,
    probability_above,
    wilson,
)

counts = st.integers(1, 100_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_agrees_with_scipy_and_holds_the_share(pair, confidence):
    k, n = pair
    low, high = wilson(k, n, confidence)
    expected = binomtest(k, n).proportion_ci(confidence_level=confidence, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= k / n <= high <= 1


@given(counts, st.sampled_from([0.001, 0.05, 0.5]))
def test_clopper_pearson_agrees_with_scipy(pair, alpha):
    k, n = pair
    bound = clopper_pearson_lower(k, n, alpha)
    exact = binomtest(k, n, alternative="greater").proportion_ci(confidence_level=1 - alpha, method="exact")
    assert bound == pytest.approx(exact.low, abs=1e-10)
    if k == n:
        assert bound == pytest.approx(alpha ** (1 / n))


@pytest.mark.parametrize(("k", "n", "alpha"), [(2, 1, 0.1), (-1, 1, 0.1), (1, math.nan, 0.1), (1, 2, 0.0), (1, 2, 1.0)])
def test_clopper_pearson_refuses_what_is_no_proportion(k, n, alpha):
    with pytest.raises(ValueError, match="must be"):
        clopper_pearson_lower(k, n, alpha)


@given(counts, st.sampled_from([0.01, 0.05, 0.5, 0.9]))
def test_the_probability_of_a_larger_share_is_that_of_the_beta_posterior(pair, share):
    k, n = pair
    assert probability_above(share, k, n) == pytest.approx(beta(k + 0.5, n - k + 0.5).sf(share), abs=1e-9)
    assert probability_above(share, k, n) <= probability_above(share, min(n, k + 1), n) + 1e-12


def test_a_count_outside_of_n_has_no_probability():
    with pytest.raises(ValueError, match=r"0\.\.n"):
        probability_above(0.1, 3, 2)


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


def test_a_single_model_has_the_interval_of_its_samples():
    values = np.random.default_rng(0).random((1, 50))
    low, high = crossed_mean(values).interval
    expected = student.interval(0.95, 49, loc=values.mean(), scale=sem(values[0]))
    assert (low, high) == pytest.approx(expected)


def test_the_crossed_interval_covers_the_mean():
    """In repeated draws of models and samples, the 95 % interval contains the true mean about as often as it says."""
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        of_models, of_samples = generator.normal(0, 0.05, (3, 1)), generator.normal(0, 0.4, (1, 60))
        low, high = crossed_mean(0.5 + of_models + of_samples + generator.normal(0, 0.2, (3, 60))).interval
        covered.append(low <= 0.5 <= high)
    assert 0.92 <= np.mean(covered) <= 1


def test_a_difference_is_that_of_the_same_samples():
    generator = np.random.default_rng(1)
    samples = generator.normal(0, 1, (1, 100))
    first = crossed_mean(samples + generator.normal(0.1, 0.01, (3, 100)))
    second = crossed_mean(samples + generator.normal(0, 0.01, (3, 100)))
    _, low, high, p = crossed_difference(first, second)
    assert low < 0.1 < high and high - low < 0.05 and p < 1e-3
    assert crossed_difference(first, first)[::3] == (0, 1)
