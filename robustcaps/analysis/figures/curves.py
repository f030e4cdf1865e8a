"""Accuracy and targeted success against eps, with confidence bands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.selection import describe_selection, select_drawn
from robustcaps.analysis.published import SOURCE, SOURCE_DATA, attack_curves
from robustcaps.analysis.tables.summary import MEASURES
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.figure_style import colours, height, white_grid

DASHES = ["-", "--", ":", "-."]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
PANELS_PER_ROW = 4
FEW_MODELS = 2
"""With at most this many models and more attacks, there is a panel per model and a line per attack."""
PUBLISHED_GREYS = {"CNN": "0.25", "matrix capsules": "0.6"}
"""Greys of the published curves."""
UNIT_NAMES = {"pixel": "of the pixel range [0,1]", "std": "standard deviations of the image"}
BUDGET = ["data", "norm", "unit"]


@dataclass(frozen=True)
class CurveFigure:
    """A figure of curves: its name, the goal of the attacks it shows, and the label of its y axis."""

    name: str
    goal: str
    ylabel: str

    @property
    def rate(self) -> str:
        """The column that is drawn."""
        return MEASURES[self.goal][0]

    @property
    def title(self) -> str:
        """The title of the figure."""
        return MEASURES[self.goal][1]


CURVES = (
    CurveFigure("accuracy", "untargeted", "accuracy"),
    CurveFigure("targeted", "targeted", "targeted success"),
)


def draw_all_curves(table: pd.DataFrame, *, published: bool = False) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for every goal that the table has curves for: attacks at more than one eps."""
    for curve in CURVES:
        part = table[table["goal"] == curve.goal]
        swept = part[part.groupby([*BUDGET, "model", "attack"])["eps"].transform("nunique") > 1]
        if not swept.empty:
            drawn = select_drawn(swept, curve.rate)
            yield curve.name, draw_curves(drawn, curve, published=published, note=describe_selection(swept, drawn))


def draw_curves(part: pd.DataFrame, curve: CurveFigure, *, published: bool = False, note: str = "") -> Figure:
    """Draw a rate against eps: for each dataset a panel per attack and a line per model, or, of few models, vice versa.

    Intervals are bands. Published curves are drawn beside linf: in panels of FGSM and BIM their own, in others all.
    """
    few = part["model"].nunique() <= FEW_MODELS < part["attack"].nunique()
    panel, line = ("model", "attack") if few else ("attack", "model")
    line_kwargs = _line_kwargs(part, line)
    rows = [list(each.groupby(panel, sort=False)) for _, each in part.groupby(BUDGET, sort=False)]
    columns = min(PANELS_PER_ROW, max(map(len, rows)))
    with white_grid():
        legend = _legend(line_kwargs, published=published and "linf" in set(part["norm"]))
        lines = sum(math.ceil(len(row) / columns) for row in rows)
        size = (3.1 * columns + 2.8, max(0.5 + 3.0 * lines, height(len(legend))))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for axis, drawn in zip(axes.flat, _filled_up(rows, columns), strict=True):
            if drawn is None:
                axis.set_axis_off()
                continue
            name, panel_lines = drawn
            for key, each in panel_lines.groupby(line, sort=False):
                _draw_line(axis, each.sort_values("eps"), curve.rate, line_kwargs[key])
            beside = published and panel_lines["norm"].iloc[0] == "linf"
            if beside:
                _draw_published(axis, curve.goal, "" if few else name, largest=panel_lines["eps"].max())
            _label(axis, panel_lines, name, published=beside)
        for first in axes[:, 0]:
            first.set_ylabel(curve.ylabel)
        figure.suptitle(_title(part, curve, note))
        figure.legend(handles=legend, loc="outside right center", frameon=False)
    return figure


def _filled_up(rows: list[list[Any]], columns: int) -> Iterator[Any]:
    """Yield the panels row by row, None where a row of the figure has no more."""
    for row in rows:
        yield from row
        yield from [None] * (-len(row) % columns)


def _line_kwargs(part: pd.DataFrame, line: str) -> dict[Any, dict[str, Any]]:
    """Return colour, width, dash and marker of each model's, or each attack's, line; the worst case is thicker."""
    names = list(part[line].unique())
    widths = [2.5 if name == WORST_CASE else 1.5 for name in names]
    return {
        name: {"color": colour, "linewidth": width, **line_style(place)}
        for place, (name, colour, width) in enumerate(zip(names, colours(names), widths, strict=True))
    }


def _draw_line(axis: Axes, line: pd.DataFrame, rate: str, kwargs: dict[str, Any]) -> None:
    axis.plot(line["eps"], line[rate], markersize=4, **kwargs)
    low, high = line[f"{rate}_low"], line[f"{rate}_high"]
    axis.fill_between(line["eps"], low, high, color=kwargs["color"], alpha=0.13, linewidth=0)


def _draw_published(axis: Axes, goal: str, attack: str, *, largest: float) -> None:
    """Draw the published curves of an attack's kind (fgsm or bim), or all; far larger eps need a logarithmic axis."""
    curves = attack_curves(goal)
    alike = curves[[attack.startswith(kind) for kind in curves["attack"]]]
    chosen = curves if alike.empty else alike
    for (model, kind), line in chosen.groupby(["model", "attack"], sort=False):
        dash = "-" if kind == "fgsm" else "--"
        axis.plot(
            line["eps"], line["value"], dash, color=PUBLISHED_GREYS[str(model)], linewidth=1, marker="x", markersize=4
        )
    if chosen["eps"].max() > 2 * largest:
        axis.set_xscale("symlog", linthresh=largest / 10, linscale=0.4)
        axis.set_xticks([0, largest / 10, largest, chosen["eps"].max()])
        axis.set_xticks([], minor=True)
        axis.xaxis.set_major_formatter("{x:g}")


def _label(axis: Axes, lines: pd.DataFrame, name: str, *, published: bool) -> None:
    """Say what a panel shows; published curves beside it may be of another dataset, which is said."""
    data, norm, unit = (str(lines[key].iloc[0]) for key in BUDGET)
    other = published and SOURCE_DATA not in data.lower()
    axis.set_title(f"{data}, {name}" + ("\n(published: another dataset)" if other else ""))
    axis.set_xlabel(f"eps ({norm}, {UNIT_NAMES[unit]})")
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlim(left=0)


def _title(part: pd.DataFrame, curve: CurveFigure, note: str) -> str:
    counts = sorted(part["n"].unique())
    n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{curve.title} (n = {n}; bands: Wilson 95 %{note})"


def line_style(position: int) -> dict[str, Any]:
    """Return the dash and the marker of the attack at that position."""
    dash = DASHES[(position + position // len(MARKERS)) % len(DASHES)]
    return {"linestyle": dash, "marker": MARKERS[position % len(MARKERS)]}


def _legend(line_kwargs: dict[Any, dict[str, Any]], *, published: bool) -> list[Line2D]:
    handles = [Line2D([], [], label=name, markersize=4, **kwargs) for name, kwargs in line_kwargs.items()]
    if published:
        handles += [
            Line2D([], [], color=shade, marker="x", linewidth=1, label=f"{name}, published*")
            for name, shade in PUBLISHED_GREYS.items()
        ]
        handles.append(Line2D([], [], linestyle="none", label="* " + SOURCE.replace(" (", "\n   (")))
    return handles
