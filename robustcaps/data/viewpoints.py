"""Familiar viewpoints, for training, and novel ones, for testing (Hinton et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustcaps.data.base import Progress
from robustcaps.data.protocol import Downsampling, Pixels, prepare
from robustcaps.errors import UserError
from robustcaps.options import Views

__all__ = ["Angle", "Views", "familiar", "prepare_rows", "rows_of"]

Angle = Literal["azimuths", "elevations"]
Rows = NDArray[np.int64]

_FIRST_AZIMUTH, _AZIMUTH_RANGE = 290, 120
"""Familiar azimuths: a third of the circle, in degrees."""
_MAX_ELEVATION = 40
"""The largest familiar elevation, in degrees above the horizon."""


def familiar(factors: pd.DataFrame, by: Angle) -> NDArray[np.bool_]:
    """Return which samples show familiar views; the others are novel.

    Azimuths from 290 to less than 50 degrees are 300, 320, 340, 0, 20 and 40 of smallNORB (6 of 18), as in the paper;
    of ETH-80 they are 292, 297, 315, 333, 338, 0, 22, 27 and 45 (15 of its 41 views, including the one from above).
    Elevations up to 40 degrees are the 3 smallest of smallNORB (30, 35, 40 of 9), as in the paper; and the 3 smallest
    of ETH-80, which counts them from the pole (polar 90, 68, 66 of 7; 28 of its 41 views).
    """
    if by == "azimuths" and "azimuth" in factors:
        return ((factors["azimuth"].to_numpy() - _FIRST_AZIMUTH) % 360) < _AZIMUTH_RANGE
    if by == "elevations" and ("elevation" in factors or "polar" in factors):
        elevation = factors["elevation"] if "elevation" in factors else 90 - factors["polar"]
        return elevation.to_numpy() <= _MAX_ELEVATION
    known = ", ".join(map(str, factors.columns)) or "none"
    raise UserError(f"views: the data has no factor for {by}; its factors are: {known}.")


def rows_of(factors: pd.DataFrame, views: Views, limit: int | None) -> Rows:
    """Return the indices of the samples of a split with the chosen views, at most `limit`.

    With `all`, they are in the order of the split; else categories alternate, so that any prefix is balanced.
    """
    if views == "all":
        return np.arange(len(factors))[:limit]
    word, _, by = views.partition("-")
    rows = np.flatnonzero(familiar(factors, cast("Angle", by)) == (word == "familiar"))
    if not len(rows):
        raise UserError(f"views: none of the {len(factors)} samples has {word} {by}.")
    turn = pd.Series(rows).groupby(factors["category"].to_numpy()[rows]).cumcount()
    return rows[np.argsort(turn.to_numpy(), kind="stable")][:limit]


def prepare_rows(
    blocks: Iterable[Pixels],
    rows: Rows,
    *,
    crop: bool,
    progress: Progress | None,
    downsampling: Downsampling = "mean",
) -> Tensor:
    """Return the images of samples, in the order of `rows`, from consecutive blocks of a split."""
    ascending = np.sort(rows)
    selected = _select_rows(blocks, ascending)
    images = prepare(selected, len(rows), crop=crop, progress=progress, downsampling=downsampling)
    return images if np.array_equal(rows, ascending) else images[torch.from_numpy(np.searchsorted(ascending, rows))]


def _select_rows(blocks: Iterable[Pixels], ascending: Rows) -> Iterator[Pixels]:
    """Yield the selected rows of each block that has any."""
    start = 0
    for block in blocks:
        first, last = np.searchsorted(ascending, (start, start + len(block)))
        if last > first:
            yield block[ascending[first:last] - start]
        start += len(block)
