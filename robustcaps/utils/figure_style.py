"""The style that all figures share: fonts, colours, panel grids and deterministic files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

STYLE: Any = {"font.size": 10, "axes.titlesize": 11, "svg.hashsalt": "robustcaps", "svg.fonttype": "none"}


@contextmanager
def white_grid() -> Iterator[None]:
    """Draw what is inside in the style of the project, on a white grid."""
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        yield


def height(legend: int) -> float:
    """Return the height of a figure, in inches, in which a legend of so many lines has room."""
    return max(4.0, 0.6 + 0.23 * legend)


def colours(names: Sequence[Any]) -> list[Any]:
    """Return a colour for every name."""
    palette: list[Any] = sns.color_palette("colorblind" if len(names) <= 10 else "husl", len(names))
    return palette


def colours_of(names: Iterable[Any]) -> dict[Any, Any]:
    """Return a colour for every name."""
    listed = list(names)
    return dict(zip(listed, colours(listed), strict=True))


def model_colours(table: pd.DataFrame) -> dict[Any, Any]:
    """Return a colour for every model of a table."""
    return colours_of(table["model"].unique())


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
    _show_dollars(figure)
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})


def _show_dollars(figure: Figure) -> None:
    """Show names as they are, also between dollar signs; only the ticks of logarithmic axes are formulas."""
    axes = [axis for each in figure.axes for axis in (each.xaxis, each.yaxis) if axis.get_scale() != "linear"]
    ticks = [tick for axis in axes for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())]
    formulas = {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in formulas:
            text.set_parse_math(False)
