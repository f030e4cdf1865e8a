"""How quickly the toys are drawn."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.perf.timing import seconds
from robustcaps.data.toys.factors import sample_factors
from robustcaps.data.toys.render import render
from robustcaps.data.toys.scene import scenes_of


def measure_drawing() -> str:
    """Return how many toys one core draws in a second."""
    samples = np.arange(90)
    scenes = scenes_of(sample_factors("train", samples), "left")
    rate = len(samples) / seconds(partial(render, scenes))
    return f"toys: {rate:.0f} images of 96x96 a second and core"
