"""Factors of variation of each sample, from its index."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.data.protocol import AZIMUTHS, CATEGORIES, ELEVATIONS, INSTANCES, LIGHTINGS, SAMPLES
from robustcaps.data.shuffling import shuffled_rows

Integers = NDArray[np.int64]

_SHAPE = (5, len(ELEVATIONS), len(AZIMUTHS), LIGHTINGS)
_PER_CATEGORY = SAMPLES // len(CATEGORIES)


def sample_factors(split: str, samples: Integers) -> pd.DataFrame:
    """Return the category (its name), instance, elevation and azimuth (degrees) and lighting of each sample.

    Sample i is of category i % 5, and the combinations of each category come in a fixed shuffled order, so that any
    prefix of a split is balanced over the classes and a fair draw from the views.
    """
    category = samples % len(CATEGORIES)
    combination = _orders(split)[category, samples // len(CATEGORIES)]
    instance, elevation, azimuth, lighting = np.unravel_index(combination, _SHAPE)
    return pd.DataFrame(
        {
            "category": np.array(CATEGORIES)[category],
            "instance": np.array(INSTANCES[split])[instance],
            "elevation": np.array(ELEVATIONS)[elevation],
            "azimuth": np.array(AZIMUTHS)[azimuth],
            "lighting": lighting,
        }
    )


@functools.cache
def _orders(split: str) -> Integers:
    """Return the order of each category's combinations."""
    return shuffled_rows(sorted(INSTANCES).index(split), len(CATEGORIES), _PER_CATEGORY)
