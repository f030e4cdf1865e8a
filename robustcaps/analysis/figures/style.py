"""What all figures share: type, colours, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE: Any = {"font.size": 10, "axes.titlesize": 11, "svg.hashsalt": "robustcaps", "svg.fonttype": "none"}


def height(legend: int) -> float:
    """Return the height of a figure, in inches, in which a legend of so many lines has room."""
    return max(4.0, 0.6 + 0.23 * legend)


def colours(names: Sequence[Any]) -> list[Any]:
    """Return a colour for every name."""
    palette: list[Any] = sns.color_palette("colorblind" if len(names) <= 10 else "husl", len(names))
    return palette


def model_colours(table: pd.DataFrame) -> dict[Any, Any]:
    """Return a colour for every model of a table."""
    models = list(table["model"].unique())
    return dict(zip(models, colours(models), strict=True))


def panel_grid(
    count: int, *, columns: int, width: float, height: float, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels of this size, in inches, in rows of at most `columns`."""
    columns = min(count, columns)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.4), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=sharex).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes[:count]


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending; the same figure always gives the same bytes."""
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
