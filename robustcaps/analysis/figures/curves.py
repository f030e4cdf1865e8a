"""Accuracy and targeted success against eps, with confidence bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.line_labels import label_lines
from robustcaps.analysis.figures.selection import describe_selection, select_drawn
from robustcaps.analysis.published import SOURCE, SOURCE_DATA, attack_curves
from robustcaps.analysis.tables.summary import MEASURES
from robustcaps.errors import UserError
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.figure_layout import make_panels, name_panels, set_caption, set_title, set_xlabel, set_ylabel
from robustcaps.utils.figure_style import colours, current_style, scaled, white_grid

DASHES = ["-", "--", ":", "-."]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
PANELS_PER_ROW = 4
MAX_LABELS = 6
"""More lines than this have a legend instead of labels at their ends."""
FEW_MODELS = 2
"""With at most this many models and more attacks, there is a panel per model and a line per attack."""
PUBLISHED_GREYS = {"CNN": "0.25", "matrix capsules": "0.6"}
"""Greys of the published curves."""
UNIT_NAMES = {
    "pixel": ", of the pixel range [0,1]",
    "std": ", standard deviations of the image",
    "count": ", changed values",
    "degrees": ", degrees",
}
SHORT_UNIT_NAMES = {"pixel": "", "std": ", image std", "count": ", values", "degrees": ", degrees"}
"""In figures of a given width; the pixel range is what readers expect."""
BUDGET = ["data", "norm", "unit"]


@dataclass(frozen=True)
class CurveFigure:
    """A figure of curves: the goal of the attacks it shows, and the label of its y axis."""

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


CURVES = {
    "accuracy": CurveFigure("untargeted", "accuracy"),
    "targeted": CurveFigure("targeted", "targeted success"),
}


def draw_accuracy(table: pd.DataFrame, *, published: bool = False) -> Figure:
    """Draw accuracy under untargeted attacks against eps, with confidence bands.

    Args:
        table: The summary of a run (`results.table`, or its table.csv).
        published: Draw published curves beside ours.

    Example:
        rc.draw_accuracy(pd.read_csv("out/quick/table.csv"))
    """
    return _draw_swept(table, CURVES["accuracy"], published=published)


def draw_targeted(table: pd.DataFrame, *, published: bool = False) -> Figure:
    """Draw the success of targeted attacks against eps, with confidence bands.

    Args:
        table: The summary of a run (`results.table`, or its table.csv).
        published: Draw published curves beside ours.

    Example:
        rc.draw_targeted(rc.load_results("out/quick").table)
    """
    return _draw_swept(table, CURVES["targeted"], published=published)


def has_curve(table: pd.DataFrame, name: str) -> bool:
    """Return whether a table has attacks at more than one eps for the figure of that name."""
    return not _swept(table, CURVES[name]).empty


def _swept(table: pd.DataFrame, curve: CurveFigure) -> pd.DataFrame:
    """Return the lines of the attacks with the curve's goal at more than one eps."""
    part = table[table["goal"] == curve.goal]
    return part[part.groupby([*BUDGET, "model", "attack"])["eps"].transform("nunique") > 1]


def _draw_swept(table: pd.DataFrame, curve: CurveFigure, *, published: bool) -> Figure:
    swept = _swept(table, curve)
    if swept.empty:
        raise UserError(f"no {curve.goal} attack has more than one eps here, so there is no curve to draw.")
    drawn = select_drawn(swept, curve.rate)
    return draw_curves(drawn, curve, published=published, note=describe_selection(swept, drawn))


def draw_curves(part: pd.DataFrame, curve: CurveFigure, *, published: bool = False, note: str = "") -> Figure:
    """Draw a rate against eps: for each dataset a panel per attack and a line per model, or, of few models, vice versa.

    Intervals are bands. Published curves are drawn beside linf: in panels of FGSM and BIM their own, in others all.
    """
    few = part["model"].nunique() <= FEW_MODELS < part["attack"].nunique()
    panel, line = ("model", "attack") if few else ("attack", "model")
    kwargs = _line_kwargs(part, line)
    groups = [list(each.groupby(panel, sort=False)) for _, each in part.groupby(BUDGET, sort=False)]
    beside = published and "linf" in set(part["norm"])
    direct = _has_room_for_labels(groups, kwargs) and not beside
    with white_grid():
        legend = [] if direct else _legend(kwargs, published=beside)
        counts = [len(group) for group in groups]
        size = {"columns": PANELS_PER_ROW, "width": 3.1, "height": 3.0}
        figure, axes = make_panels(counts, legend=legend, sharey=True, **size)  # type: ignore[arg-type]
        panels = [each for group in groups for each in group]
        titles, common = name_panels([(str(lines["data"].iloc[0]), str(name)) for name, lines in panels])
        for axis, (name, lines), title in zip(axes, panels, titles, strict=True):
            for key, each in lines.groupby(line, sort=False):
                _draw_line(axis, each.sort_values("eps"), curve.rate, kwargs[key])
            if direct:
                label_lines(axis, {str(key): kwargs[key]["color"] for key in lines[line].unique()})
            of_linf = beside and lines["norm"].iloc[0] == "linf"
            if of_linf:
                _draw_published(axis, curve.goal, "" if few else str(name), largest=lines["eps"].max())
            _label(axis, lines, title, published=of_linf)
            if axis.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                set_ylabel(axis, curve.ylabel)
        set_caption(figure, _title(part, curve, note), common)
    return figure


def _has_room_for_labels(groups: Sequence[Sequence[Any]], kwargs: Mapping[Any, Any]) -> bool:
    """Return whether lines are labelled at their ends: in a figure of a given width with a single panel."""
    return current_style().width is not None and sum(map(len, groups)) == 1 and len(kwargs) <= MAX_LABELS


def _line_kwargs(part: pd.DataFrame, line: str) -> dict[Any, dict[str, Any]]:
    """Return colour, width, dash and marker of each model's, or each attack's, line; the worst case is thicker."""
    names = list(part[line].unique())
    widths = [scaled(2.5 if name == WORST_CASE else 1.5) for name in names]
    return {
        name: {"color": colour, "linewidth": width, "markersize": scaled(4), **line_style(place)}
        for place, (name, colour, width) in enumerate(zip(names, colours(names), widths, strict=True))
    }


def _draw_line(axis: Axes, line: pd.DataFrame, rate: str, kwargs: dict[str, Any]) -> None:
    axis.plot(line["eps"], line[rate], **kwargs)
    low, high = line[f"{rate}_low"], line[f"{rate}_high"]
    axis.fill_between(line["eps"], low, high, color=kwargs["color"], alpha=0.13, linewidth=0)


def _draw_published(axis: Axes, goal: str, attack: str, *, largest: float) -> None:
    """Draw the published curves of an attack's kind (fgsm or bim), or all; far larger eps need a logarithmic axis."""
    curves = attack_curves(goal)
    alike = curves[[attack.startswith(kind) for kind in curves["attack"]]]
    chosen = curves if alike.empty else alike
    for (model, kind), line in chosen.groupby(["model", "attack"], sort=False):
        dash = "-" if kind == "fgsm" else "--"
        axis.plot(line["eps"], line["value"], dash, color=PUBLISHED_GREYS[str(model)], **_published_mark())
    if chosen["eps"].max() > 2 * largest:
        axis.set_xscale("symlog", linthresh=largest / 10, linscale=0.4)
        axis.set_xticks([0, largest / 10, largest, chosen["eps"].max()])
        axis.set_xticks([], minor=True)
        axis.xaxis.set_major_formatter("{x:g}")


def _published_mark() -> dict[str, Any]:
    return {"linewidth": scaled(1), "marker": "x", "markersize": scaled(4)}


def _label(axis: Axes, lines: pd.DataFrame, title: str, *, published: bool) -> None:
    """Say what a panel shows; published curves beside it may be of another dataset, which is said."""
    data, norm, unit = (str(lines[key].iloc[0]) for key in BUDGET)
    other = published and SOURCE_DATA not in data.lower()
    set_title(axis, title + ("\n(published: another dataset)" if other else ""))
    names = SHORT_UNIT_NAMES if current_style().width else UNIT_NAMES
    of_angle = f"{norm}: largest change in degrees"
    set_xlabel(axis, of_angle if unit == "degrees" else f"eps ({norm}{names[unit]})")
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
    handles = [Line2D([], [], label=name, **kwargs) for name, kwargs in line_kwargs.items()]
    if published:
        handles += [
            Line2D([], [], color=shade, label=f"{name}, published*", **_published_mark())
            for name, shade in PUBLISHED_GREYS.items()
        ]
        handles.append(Line2D([], [], linestyle="none", label="* " + SOURCE.replace(" (", "\n   (")))
    return handles
