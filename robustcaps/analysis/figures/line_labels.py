"""Names of lines at their ends, instead of a legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from robustcaps.utils.figure_layout import INCH
from robustcaps.utils.figure_style import current_style, scaled

PANEL_SHARE = 0.7
"""About the share of a figure's height that its only panel takes."""
CONNECTOR: dict[str, Any] = {"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 1}
LINE_HEIGHT = 1.2
"""Of a label, in font sizes."""


def label_lines(axis: Axes, colours: Mapping[str, Any]) -> None:
    """Write the name of every line beside its right end, in its colour and far enough from the others."""
    low, high = axis.get_ylim()
    inches = PANEL_SHARE * axis.get_figure(root=True).get_figheight()  # type: ignore[union-attr]
    gap = LINE_HEIGHT * current_style().font / INCH / inches * (high - low)
    curves = [np.asarray(line.get_ydata(), dtype=float) for line in axis.lines]
    places = spread([curve[-1] for curve in curves], [curve.mean() for curve in curves], gap)
    for line, curve, place, (name, colour) in zip(axis.lines, curves, places, colours.items(), strict=True):
        axis.annotate(
            name,
            (np.asarray(line.get_xdata(), dtype=float)[-1], curve[-1]),
            xytext=(1.04, place),
            textcoords=axis.get_yaxis_transform(),
            va="center",
            color=colour,
            annotation_clip=False,
            arrowprops={**CONNECTOR, "color": colour, "linewidth": scaled(0.8)},
        )


def spread(values: Sequence[float], tie_breakers: Sequence[float], gap: float) -> list[float]:
    """Return values moved upwards until they are `gap` apart; equal ones are in the order of their tie-breakers."""
    places, lowest = [0.0] * len(values), -math.inf
    for place in np.lexsort((tie_breakers, values)):
        places[place] = lowest = max(values[place], lowest + gap)
    return places
