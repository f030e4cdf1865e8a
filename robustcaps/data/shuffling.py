"""A shuffled order of samples that is the same everywhere and always."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shuffled_rows(key: int, rows: int, columns: int) -> NDArray[np.int64]:
    """Return (rows, columns) numbers, every row the numbers 0..columns-1 in an order of its own.

    These are ranks of raw Philox numbers, which numpy keeps the same in all versions (its shuffles it does not).
    """
    draws = np.random.Philox(key=key).random_raw(rows * columns).reshape(rows, columns)
    return np.argsort(draws, axis=1, kind="stable")
