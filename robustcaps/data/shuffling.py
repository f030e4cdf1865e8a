"""Shuffled orders of samples that do not depend on the machine or on library versions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def shuffled_rows(key: int, rows: int, columns: int) -> NDArray[np.int64]:
    """Return an array (rows, columns), each row an independent permutation of 0..columns-1.

    These are ranks of raw Philox numbers, which are stable across NumPy versions, unlike its shuffles.
    """
    draws = np.random.Philox(key=key).random_raw(rows * columns).reshape(rows, columns)
    return np.argsort(draws, axis=1, kind="stable")
