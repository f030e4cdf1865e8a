"""Toys: a built-in, rendered substitute for smallNORB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from robustcaps.data.base import Data, Progress
from robustcaps.data.protocol import CATEGORIES, EYES, INPUT_SIZE, SAMPLES, Eyes
from robustcaps.data.toys.blocks import draw_blocks
from robustcaps.data.toys.factors import sample_factors
from robustcaps.data.toys.views import ToysRenderer
from robustcaps.data.viewpoints import Views, prepare_rows, rows_of
from robustcaps.registry import DATASETS


def _count_samples(*, split: str, views: Views = "all", **_: object) -> int:
    """Return how many samples there are, without drawing them."""
    return len(rows_of(sample_factors(split, np.arange(SAMPLES)), views, None))


@DATASETS.register("toys", count_samples=_count_samples)
def toys(
    *,
    split: str,
    limit: int | None,
    data_dir: Path,  # noqa: ARG001 - nothing is read: the package draws them
    progress: Progress | None,
    eyes: Eyes = "left",
    crop: bool = True,
    views: Views = "all",
) -> Data:
    """Grey toy figures of 5 categories in all views and lights of smallNORB, drawn by the package; needs no files."""
    samples = rows_of(sample_factors(split, np.arange(SAMPLES)), views, limit)
    blocks = draw_blocks(split, int(samples.max()) + 1, EYES[eyes])
    return Data(
        images=prepare_rows(blocks, samples, crop=crop, progress=progress),
        labels=torch.from_numpy(samples % len(CATEGORIES)),
        class_names=CATEGORIES,
        name="toys",
        split=split,
        size=INPUT_SIZE,
        factors=sample_factors(split, samples),
        renderer=ToysRenderer(EYES[eyes], crop),
    )
