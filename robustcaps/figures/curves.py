"""Rates against eps: what is drawn was computed before, and intervals are bands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.figures.style import STYLE, height, model_colours
from robustcaps.published import SOURCE, SOURCE_DATA, attack_curves
from robustcaps.tables import MEASURES, WORST_CASE

DASHES = ["-", "--", ":", "-."]
MOST_BANDS = 6
"""Of how many attacks the intervals are drawn; of more, only that of their worst case."""
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


@dataclass(frozen=True)
class Curve:
    """What a curve figure shows of the table."""

    name: str
    goal: str
    ylabel: str

    @property
    def rate(self) -> str:
        """The column that is drawn."""
        return MEASURES[self.goal][0]

    @property
    def title(self) -> str:
        """What the figure is called."""
        return MEASURES[self.goal][1]


CURVES = (
    Curve("accuracy", "untargeted", "accuracy"),
    Curve("targeted", "targeted", "targeted success"),
)


def draw_all_curves(table: pd.DataFrame, *, published: bool = False) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for every goal that the table has curves for."""
    for curve in CURVES:
        part = table[table["goal"] == curve.goal]
        swept = part.groupby(["data", "norm", "unit"], sort=False)["eps"].nunique()
        if not part.empty and swept.max() > 1:
            yield curve.name, draw_curves(part, curve, published=published)


def draw_curves(part: pd.DataFrame, curve: Curve, *, published: bool = False) -> Figure:
    """Draw a rate against eps: a panel per dataset and norm, a colour per model, a line style per attack."""
    panels = list(part.groupby(["data", "norm", "unit"], sort=False))
    colours = model_colours(part)
    attacks = list(part["attack"].unique())
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        legend = _legend(colours, attacks, published=published and "linf" in set(part["norm"]))
        figure = Figure(figsize=(4.6 * len(panels) + 2.6, height(len(legend))), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, ((data, norm, unit), panel) in zip(axes, panels, strict=True):
            for (model, attack), line in panel.groupby(["model", "attack"], sort=False):
                style = line_style(attacks.index(attack)) | {"linewidth": 2.5 if attack == WORST_CASE else 1.5}
                _draw_line(axis, line.sort_values("eps"), curve.rate, colours[model], style)
                if len(attacks) <= MOST_BANDS or attack == WORST_CASE:
                    _draw_band(axis, line.sort_values("eps"), curve.rate, colours[model])
            beside = published and norm == "linf"
            if beside:
                _draw_published(axis, curve.goal)
            _label(axis, _heading(str(data), published=beside), str(norm), str(unit))
        axes[0].set_ylabel(curve.ylabel)
        figure.suptitle(_title(part, curve))
        figure.legend(handles=legend, loc="outside right center", frameon=False)
    return figure


def _draw_line(axis: Axes, line: pd.DataFrame, rate: str, colour: Any, style: dict[str, Any]) -> None:
    axis.plot(line["eps"], line[rate], color=colour, markersize=4, **style)


def _draw_band(axis: Axes, line: pd.DataFrame, rate: str, colour: Any) -> None:
    axis.fill_between(line["eps"], line[f"{rate}_low"], line[f"{rate}_high"], color=colour, alpha=0.15, linewidth=0)


def _draw_published(axis: Axes, goal: str) -> None:
    for (model, attack), line in attack_curves(goal).groupby(["model", "attack"], sort=False):
        shade = "0.25" if model == "CNN" else "0.6"
        dash = "-" if attack == "fgsm" else "--"
        axis.plot(line["eps"], line["value"], color=shade, linestyle=dash, linewidth=1, marker="x", markersize=4)


def _heading(data: str, *, published: bool) -> str:
    """Return the name of a panel's dataset; published curves beside it may be of another one, which is said."""
    other = published and SOURCE_DATA not in data.lower()
    return f"{data}\n(published: smallNORB, another dataset)" if other else data


def _label(axis: Axes, heading: str, norm: str, unit: str) -> None:
    words = {"pixel": "of the pixel range [0,1]", "std": "standard deviations of the image"}
    axis.set_title(heading)
    axis.set_xlabel(f"eps ({norm}, {words[unit]})")
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlim(left=0)


def _title(part: pd.DataFrame, curve: Curve) -> str:
    counts = sorted(part["n"].unique())
    n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{curve.title} (n = {n}; bands: Wilson 95 %)"


def line_style(position: int) -> dict[str, Any]:
    """Return the dash and the marker of the attack at that position."""
    dash = DASHES[(position + position // len(MARKERS)) % len(DASHES)]
    return {"linestyle": dash, "marker": MARKERS[position % len(MARKERS)]}


def _legend(colours: dict[Any, Any], attacks: list[str], *, published: bool) -> list[Line2D]:
    handles = [Line2D([], [], color=colour, linewidth=3, label=model) for model, colour in colours.items()]
    handles += [Line2D([], [], color="0.2", label=name, **line_style(place)) for place, name in enumerate(attacks)]
    if published:
        shades = (("CNN", "0.25"), ("matrix capsules", "0.6"))
        handles += [Line2D([], [], color=shade, marker="x", label=f"{name}, published*") for name, shade in shades]
        handles.append(Line2D([], [], linestyle="none", label="* " + SOURCE.replace(" (", "\n   (")))
    return handles
