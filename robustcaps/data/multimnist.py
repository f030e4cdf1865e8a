"""MultiMNIST (Sabour, Frosst & Hinton 2017, section 6): overlapping pairs of MNIST digits of different classes.

Each digit is shifted by up to 4 pixels in each direction in an image of 36x36; the two are added and clipped at 1. The
pairs are deterministic. The label is the class of the first digit, `data.factors["other"]` that of the second. A
network recognises both if they are its two longest capsules:

    longest = model.scores(data.images).topk(2).indices.sort().values
    both = torch.stack([data.labels, torch.tensor(data.factors["other"].to_numpy())], 1).sort().values
    (longest == both).all(1)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field

from robustcaps.data.base import Data, Progress
from robustcaps.data.mnist import MNIST, SIDE, read_split
from robustcaps.data.protocol import Pixels
from robustcaps.data.shuffling import shuffled_rows
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

SHIFT = 4
FRAME = SIDE + 2 * SHIFT
_CLASSES = len(MNIST.class_names)
_KEYS = {"train": 3600, "test": 3700}
"""First random key of each split; every use adds its own offset."""
_BLOCK = 1000
"""Pairs drawn at a time."""

Numbers = NDArray[np.int64]


def _count_samples(*, split: str, data_dir: Path, count: int | None = None, **_: object) -> int:
    """Return how many pairs there are, without making them."""
    return count or len(read_split(MNIST, split, data_dir)[1])


@DATASETS.register("multimnist", count_samples=_count_samples)
def multimnist(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,
    progress: Progress | None,
    count: Annotated[
        int | None, Field(ge=1, description="number of pairs; by default as many as MNIST has digits")
    ] = None,
) -> Data:
    """Two overlapping handwritten digits, 36x36, made from the official MNIST files; the label is the first."""
    pixels, classes = read_split(MNIST, split, data_dir)
    total = count or len(classes)
    factors = _choose_pairs(classes, min(limit or total, total), _KEYS[split], where=data_dir / MNIST.name)
    blocks = []
    for block in _blocks(pixels, factors):
        blocks.append(torch.from_numpy(block.astype(np.float32) / 255))
        if progress is not None:
            progress(sum(map(len, blocks)), len(factors))
    return Data(
        images=torch.cat(blocks).unsqueeze(1),
        labels=torch.from_numpy(classes[factors["digit"]].astype(np.int64)),
        class_names=MNIST.class_names,
        name="multimnist",
        split=split,
        size=FRAME,
        factors=factors,
    )


def _choose_pairs(classes: NDArray[np.uint8], count: int, key: int, *, where: Path) -> pd.DataFrame:
    """Choose the pairs: MNIST digits (indices), their classes, and their shifts down and right.

    In each ten pairs every class is first once and second once; each ninety pairs cover all pairs of classes.
    """
    absent = set(range(_CLASSES)) - set(classes.tolist())
    if absent:
        raise UserError(f"{where}: contains no digit {min(absent)}, which MultiMNIST needs.")
    tens, first = np.divmod(np.arange(count), _CLASSES)
    steps = 1 + shuffled_rows(key, 1, _CLASSES - 1)[0]
    second = (first + steps[tens % len(steps)]) % _CLASSES
    digits = _choose_digits(classes, first, tens, key + 1)
    others = _choose_digits(classes, second, tens, key + 1 + _CLASSES)
    shifts = np.random.Philox(key=key + 1 + 2 * _CLASSES).random_raw(4 * count).reshape(count, 4) % (2 * SHIFT + 1)
    names = ("down", "right", "other_down", "other_right")
    moves = {name: column.astype(np.int64) - SHIFT for name, column in zip(names, shifts.T, strict=True)}
    category = np.array(MNIST.class_names)[first]
    return pd.DataFrame({"category": category, "other": second, "digit": digits, "other_digit": others, **moves})


def _choose_digits(classes: NDArray[np.uint8], wanted: Numbers, turns: Numbers, key: int) -> Numbers:
    """Return a digit of each wanted class: all digits of the class in a shuffled order, then in another order."""
    chosen = np.empty_like(wanted)
    for number in range(_CLASSES):
        (members,) = np.nonzero(classes == number)
        rounds, place = np.divmod(turns[wanted == number], len(members))
        order = shuffled_rows(key + number, int(rounds.max(initial=0)) + 1, len(members))
        chosen[wanted == number] = members[order[rounds, place]]
    return chosen


def _blocks(pixels: Pixels, factors: pd.DataFrame) -> Iterator[Pixels]:
    """Yield the images of pairs, in blocks (n, 36, 36)."""
    for start in range(0, len(factors), _BLOCK):
        rows = factors[start : start + _BLOCK]
        one = _shift(pixels[rows["digit"]], rows["down"].to_numpy(), rows["right"].to_numpy())
        other = _shift(pixels[rows["other_digit"]], rows["other_down"].to_numpy(), rows["other_right"].to_numpy())
        yield np.minimum(one.astype(np.uint16) + other, 255).astype(np.uint8)


def _shift(digits: Pixels, down: Numbers, right: Numbers) -> Pixels:
    """Return digits in images of 36x36, each shifted from the centre."""
    wide = np.pad(digits, ((0, 0), (2 * SHIFT, 2 * SHIFT), (2 * SHIFT, 2 * SHIFT)))
    windows = sliding_window_view(wide, (FRAME, FRAME), axis=(1, 2))  # (n, 9, 9, 36, 36), a view
    return windows[np.arange(len(digits)), SHIFT - down, SHIFT - right]
