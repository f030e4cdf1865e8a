"""What gets past a detector: attacks that succeed, and those of them that are not flagged."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.style import STYLE

SHARES: dict[str, Any] = {"success": "-", "undetected": "--"}


def draw_detection(table: pd.DataFrame) -> Figure:
    """Draw success and undetected success against eps, a colour per attack, a panel per dataset and model."""
    panels = list(table.groupby(["data", "model", "diagnostic", "norm"], sort=False))
    attacks = list(table["attack"].unique())
    colours = dict(zip(attacks, sns.color_palette("colorblind", len(attacks)), strict=True))
    several = len(set(table["diagnostic"])) > 1
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        figure = Figure(figsize=(3.8 * len(panels) + 2.8, 4.0), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, ((data, model, diagnostic, norm), panel) in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, colours)
            axis.set_title(f"{data}, {model}" + (f", {diagnostic}" if several else ""))
            axis.set_xlabel(f"eps ({norm})")
            axis.set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("share of the images")
        figure.suptitle(f"Past the classifier, and past the detector too (n = {table['n'].max()}; bars: Wilson 95 %)")
        figure.legend(handles=_legend(colours), loc="outside right center", frameon=False)
    return figure


def _draw_panel(axis: Axes, panel: pd.DataFrame, colours: dict[Any, Any]) -> None:
    for attack, part in panel.groupby("attack", sort=False):
        ordered = part.sort_values("eps")
        for share, dash in SHARES.items():
            value = ordered[share]
            ends = [value - ordered[f"{share}_low"], ordered[f"{share}_high"] - value]
            look: Any = {"color": colours[attack], "linestyle": dash, "marker": "o", "markersize": 4, "capsize": 2}
            axis.errorbar(ordered["eps"], value, yerr=ends, **look)
    axis.axhline(panel["false_alarms"].iloc[0], color="0.4", linestyle=":", linewidth=1.2)


def _legend(colours: dict[Any, Any]) -> list[Line2D]:
    names = {"success": "fooled", "undetected": "fooled and not flagged"}
    handles = [Line2D([], [], color=colour, linewidth=3, label=attack) for attack, colour in colours.items()]
    handles += [Line2D([], [], color="0.2", linestyle=dash, label=names[share]) for share, dash in SHARES.items()]
    return [*handles, Line2D([], [], color="0.4", linestyle=":", label="clean images flagged")]
