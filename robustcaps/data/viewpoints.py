"""Familiar and novel viewpoints (Hinton et al. 2018): what a network is trained on, and what it must do without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustcaps.data.base import Progress
from robustcaps.data.protocol import Pixels, prepare
from robustcaps.errors import UserError
from robustcaps.suite.spec import Views

__all__ = ["Angle", "Views", "familiar", "prepare_rows", "rows_of"]

Angle = Literal["azimuths", "elevations"]
Rows = NDArray[np.int64]

_FROM, _WIDE = 290, 120
"""Familiar azimuths: an arc of so many degrees, a third of the circle, from here on."""
_HIGHEST = 40
"""The largest familiar elevation, in degrees above the horizon."""


def familiar(factors: pd.DataFrame, by: Angle) -> NDArray[np.bool_]:
    """Tell which samples show familiar views; the others are novel.

    Azimuths from 290 to less than 50 degrees are 300, 320, 340, 0, 20 and 40 of smallNORB (6 of 18), as in the paper;
    of ETH-80 they are 292, 297, 315, 333, 338, 0, 22, 27 and 45 (15 of its 41 views, the one from above among them).
    Elevations up to 40 degrees are the 3 smallest of smallNORB (30, 35, 40 of 9), as in the paper; and the 3 smallest
    of ETH-80, which counts them from the pole (polar 90, 68, 66 of 7; 28 of its 41 views).
    """
    if by == "azimuths" and "azimuth" in factors:
        return ((factors["azimuth"].to_numpy() - _FROM) % 360) < _WIDE
    if by == "elevations" and ("elevation" in factors or "polar" in factors):
        elevation = factors["elevation"] if "elevation" in factors else 90 - factors["polar"]
        return elevation.to_numpy() <= _HIGHEST
    known = ", ".join(map(str, factors.columns)) or "none"
    raise UserError(f"views: these data do not tell {by} apart; the factors they know are: {known}.")


def rows_of(factors: pd.DataFrame, views: Views, limit: int | None) -> Rows:
    """Return which samples of a split show some views, the first `limit` of them.

    Some views come in turns, one sample of each category in each, so that any prefix is balanced; all views in the
    order of the split.
    """
    if views == "all":
        return np.arange(len(factors))[:limit]
    word, _, by = views.partition("-")
    rows = np.flatnonzero(familiar(factors, cast("Angle", by)) == (word == "familiar"))
    if not len(rows):
        raise UserError(f"views: none of the {len(factors)} samples are of the {word} {by}.")
    turn = pd.Series(rows).groupby(factors["category"].to_numpy()[rows]).cumcount()
    return rows[np.argsort(turn.to_numpy(), kind="stable")][:limit]


def prepare_rows(blocks: Iterable[Pixels], rows: Rows, *, crop: bool, progress: Progress | None) -> Tensor:
    """Return the images of some samples, in the order of `rows`, out of blocks of a split's successive samples."""
    ascending = np.sort(rows)
    images = prepare(_picked(blocks, ascending), len(rows), crop=crop, progress=progress)
    return images if np.array_equal(rows, ascending) else images[torch.from_numpy(np.searchsorted(ascending, rows))]


def _picked(blocks: Iterable[Pixels], ascending: Rows) -> Iterator[Pixels]:
    """Yield of each block what is wanted, where anything is."""
    start = 0
    for block in blocks:
        first, last = np.searchsorted(ascending, (start, start + len(block)))
        if last > first:
            yield block[ascending[first:last] - start]
        start += len(block)
