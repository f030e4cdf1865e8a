from __future__ import annotations

import numpy as np
import pytest

from robustcaps.data.protocol import AZIMUTHS, CATEGORIES, ELEVATIONS, INSTANCES, LIGHTINGS, SAMPLES
from robustcaps.data.toys.factors import sample_factors

SPLITS = pytest.mark.parametrize("split", ["train", "test"])


@SPLITS
def test_every_combination_comes_once(split: str) -> None:
    factors = sample_factors(split, np.arange(SAMPLES))
    assert not factors.duplicated().any()
    assert [sorted(factors[name].unique()) for name in factors] == [
        sorted(CATEGORIES),
        sorted(INSTANCES[split]),
        list(ELEVATIONS),
        list(AZIMUTHS),
        list(range(LIGHTINGS)),
    ]


@SPLITS
@pytest.mark.parametrize("name", ["instance", "elevation", "azimuth", "lighting"])
def test_a_prefix_is_a_fair_draw(split: str, name: str) -> None:
    """Chi-squared of the first 500 samples against even shares, far below what a sorted order would give."""
    counts = sample_factors(split, np.arange(500))[name].value_counts()
    groups = {"instance": 5, "elevation": 9, "azimuth": 18, "lighting": 6}[name]
    even = 500 / groups
    chi_squared = ((counts - even) ** 2 / even).sum() + (groups - len(counts)) * even
    assert chi_squared < 3 * groups


def test_the_order_never_changes() -> None:
    columns = ["category", "instance", "elevation", "azimuth", "lighting"]
    rows = sample_factors("test", np.array([0, 1, 24_299]))[columns].to_numpy().tolist()
    assert rows == [["animal", 1, 70, 300, 0], ["human", 2, 60, 320, 4], ["car", 3, 50, 60, 4]]


def test_any_sample_can_be_asked_for_alone() -> None:
    whole = sample_factors("train", np.arange(SAMPLES))
    assert sample_factors("train", np.array([777])).iloc[0].equals(whole.iloc[777])
