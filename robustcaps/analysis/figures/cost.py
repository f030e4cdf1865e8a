"""Robust accuracy against the cost of the attack."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.selection import describe_selection, select_drawn
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.figure_style import height, model_colours, white_grid

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "8", "1", "2", "3", "4", "+", "x", "|", "_"]
"""One for every attack: markers alone tell attacks apart here."""


def draw_cost(table: pd.DataFrame) -> Figure:
    """Draw accuracy at one eps against the passes of the whole sweep: a colour per model, a marker per attack.

    The eps is the largest that most attacks of the panel were run with; lower and further left is a better attack.
    """
    whole = comparable(table)
    part = select_drawn(whole)
    panels = list(part.groupby(["data", "norm", "unit"], sort=False))
    colours = model_colours(part)
    markers = {attack: MARKERS[place % len(MARKERS)] for place, attack in enumerate(part["attack"].unique())}
    with white_grid():
        legend = _legend(colours, markers)
        figure = Figure(figsize=(4.6 * len(panels) + 3.0, height(len(legend))), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, ((data, norm, unit), panel) in zip(axes, panels, strict=True):
            eps = _common_eps(panel)
            for (model, attack), line in panel.groupby(["model", "attack"], sort=False):
                at = line[line["eps"] == eps]
                if at.empty:
                    continue
                passes = float((line["forwards"] + line["backwards"]).sum())
                value = float(at["accuracy"].iloc[0])
                low, high = float(at["accuracy_low"].iloc[0]), float(at["accuracy_high"].iloc[0])
                bar = [[value - low], [high - value]]
                mark = {"color": colours[model], "marker": markers[attack], "markersize": 7, "elinewidth": 1}
                axis.errorbar(passes, value, yerr=bar, linestyle="none", **mark)
            axis.set_xscale("log")
            axis.set_title(f"{data}, eps {eps:g} ({norm}, {unit})")
            axis.set_xlabel("forward + backward passes per sample, whole sweep")
            axis.set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("accuracy under attack")
        figure.suptitle(f"Robustness against cost (bars: Wilson 95 %{describe_selection(whole, part)})")
        figure.legend(handles=legend, loc="outside right center", frameon=False)
    return figure


def comparable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines that can be compared by cost: of single, untargeted attacks."""
    return table[(table["goal"] == "untargeted") & (table["eps"] > 0) & (table["attack"] != WORST_CASE)]


def _common_eps(panel: pd.DataFrame) -> float:
    """Return the largest of the eps that most attacks share."""
    shared = panel.groupby("eps")["attack"].nunique()
    return float(shared[shared == shared.max()].index.max())


def _legend(colours: dict[Any, Any], markers: dict[str, str]) -> list[Line2D]:
    handles = [Line2D([], [], color=colour, linewidth=3, label=model) for model, colour in colours.items()]
    marks = [
        Line2D([], [], marker=mark, label=attack, color="0.2", linestyle="none") for attack, mark in markers.items()
    ]
    return handles + marks
