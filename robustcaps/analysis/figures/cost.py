"""Robust accuracy against the cost of the attack."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.selection import describe_selection, select_drawn
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.figure_layout import make_panels, name_panels, set_caption, set_title, set_xlabel, set_ylabel
from robustcaps.utils.figure_style import model_colours, scaled, white_grid

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "8", "1", "2", "3", "4", "+", "x", "|", "_"]
"""One for every attack: markers alone tell attacks apart here."""


def draw_cost(table: pd.DataFrame) -> Figure:
    """Draw accuracy at one eps against the passes of the whole sweep: a colour per model, a marker per attack.

    The eps is the largest that most attacks of the panel were run with; lower and further left is a better attack.

    Args:
        table: The summary of a run (`results.table`, or its table.csv).

    Example:
        rc.draw_cost(rc.load_results("out/quick").table)
    """
    whole = comparable(table)
    part = select_drawn(whole)
    panels = list(part.groupby(["data", "norm", "unit"], sort=False))
    colours = model_colours(part)
    markers = {attack: MARKERS[place % len(MARKERS)] for place, attack in enumerate(part["attack"].unique())}
    with white_grid():
        figure, axes = make_panels(
            [len(panels)], columns=4, width=4.6, height=4.0, legend=_legend(colours, markers), sharey=True
        )
        eps_by_panel = [_common_eps(panel) for _, panel in panels]
        titles, common = name_panels(
            [(key[0], f"eps {eps:g} ({key[1]}, {key[2]})") for (key, _), eps in zip(panels, eps_by_panel, strict=True)]
        )
        for axis, (_, panel), eps, title in zip(axes, panels, eps_by_panel, titles, strict=True):
            for (model, attack), line in panel.groupby(["model", "attack"], sort=False):
                _draw_point(axis, line, eps, {"color": colours[model], "marker": markers[attack]})
            axis.set_xscale("log")
            set_title(axis, title)
            set_xlabel(axis, "forward + backward passes per sample, whole sweep")
            axis.set_ylim(-0.02, 1.02)
        set_ylabel(axes[0], "accuracy under attack")
        note = describe_selection(whole, part)
        set_caption(figure, f"Robustness against cost (bars: Wilson 95 %{note})", common)
    return figure


def _draw_point(axis: Axes, line: pd.DataFrame, eps: float, mark: dict[str, Any]) -> None:
    """Draw the accuracy of a sweep at one eps over the passes of all of it, if it has that eps."""
    for at in line[line["eps"] == eps].to_dict("records"):
        passes = float((line["forwards"] + line["backwards"]).sum())
        bar = [[at["accuracy"] - at["accuracy_low"]], [at["accuracy_high"] - at["accuracy"]]]
        sizes: Any = {"markersize": scaled(7), "elinewidth": scaled(1)}
        axis.errorbar(passes, at["accuracy"], yerr=bar, linestyle="none", **mark, **sizes)


def comparable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that can be compared by cost: of single, untargeted attacks."""
    return table[(table["goal"] == "untargeted") & (table["eps"] > 0) & (table["attack"] != WORST_CASE)]


def _common_eps(panel: pd.DataFrame) -> float:
    """Return the largest of the eps that most attacks share."""
    shared = panel.groupby("eps")["attack"].nunique()
    return float(shared[shared == shared.max()].index.max())


def _legend(colours: dict[Any, Any], markers: dict[str, str]) -> list[Line2D]:
    handles = [Line2D([], [], color=colour, linewidth=scaled(3), label=model) for model, colour in colours.items()]
    marks = [
        Line2D([], [], marker=mark, label=attack, color="0.2", linestyle="none", markersize=scaled(6))
        for attack, mark in markers.items()
    ]
    return handles + marks
