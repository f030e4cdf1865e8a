"""What diagnoses found: how much of the measured robustness stays, and what gradients are like."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.style import STYLE, model_colours

STATUS_COLOURS = {"trusted": "#1b7837", "suspicious": "#b8860b", "masked": "#b2182b"}
BINS = 25


def draw_verdicts(verdicts: pd.DataFrame) -> Figure:
    """Draw the robust accuracy of every model before and after the remedies: a panel per dataset and eps."""
    panels = list(verdicts.groupby(["data", "norm", "eps"], sort=False))
    most = max(len(panel) for _, panel in panels)
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        size = (3.2 * len(panels) + 5.4, 1.6 + 0.3 * most)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
        lines: list[tuple[str, str]] = list(dict.fromkeys(_lines(verdicts)))
        for axis, ((data, norm, eps), panel) in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, lines)
            axis.set_title(f"{data}, eps {eps:g} ({norm})")
            axis.set_xlabel("robust accuracy")
        for axis in axes[1:]:
            axis.set_yticklabels([])
        figure.suptitle(f"What stays of the robust accuracy (n = {verdicts['n'].max()}; bars: Wilson 95 %)")
        figure.legend(handles=_legend(), loc="outside right center", frameon=False)
    return figure


def _lines(verdicts: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(verdicts["model"].astype(str), verdicts["diagnostic"].astype(str), strict=True))


def _draw_panel(axis: Axes, panel: pd.DataFrame, lines: list[tuple[str, str]]) -> None:
    several = len({diagnostic for _, diagnostic in lines}) > 1
    for line, key in zip(panel.to_dict("records"), _lines(panel), strict=True):
        place, colour = lines.index(key), STATUS_COLOURS[line["status"]]
        if np.isnan(line["corrected"]):
            axis.text(0.0, place, "cannot be judged", va="center", color=colour)
            continue
        axis.plot([line["naive"], line["corrected"]], [place, place], color=colour, linewidth=1.2, zorder=1)
        axis.plot([line["corrected_low"], line["corrected_high"]], [place, place], color=colour, linewidth=4, alpha=0.3)
        axis.plot(line["naive"], place, "o", markerfacecolor="white", color=colour, markersize=6)
        axis.plot(line["corrected"], place, "o", color=colour, markersize=6)
    labels = [f"{model}, {diagnostic}" if several else model for model, diagnostic in lines]
    axis.set_yticks(range(len(lines)), labels)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xlim(-0.03, 1.03)


def _legend() -> list[Line2D]:
    handles = [
        Line2D(
            [], [], color="0.3", marker="o", linestyle="none", markerfacecolor="white", label="naive (textbook PGD)"
        ),
        Line2D([], [], color="0.3", marker="o", linestyle="none", label="after the remedies"),
    ]
    return handles + [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in STATUS_COLOURS.items()]


def draw_gradients(rows: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw how large gradients are and how many entries are exactly zero: a column per loss, two rows per dataset."""
    datasets, losses = list(rows["data"].unique()), list(rows["loss"].unique())
    colours = model_colours(table)
    sizes = np.log10(rows.loc[rows["l2"] > 0, "l2"])
    bins = np.linspace(sizes.min(), sizes.max(), BINS) if len(sizes) else np.linspace(-1.0, 0.0, BINS)
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        figure = Figure(figsize=(3.6 * len(losses) + 2.2, 0.6 + 4.2 * len(datasets)), layout="constrained")
        shape = 2 * len(datasets), len(losses)
        axes = figure.subplots(*shape, squeeze=False, sharey="row", height_ratios=(3, 2) * len(datasets))
        for (data, loss), panel in rows.groupby(["data", "loss"], sort=False):
            row, column = 2 * datasets.index(data), losses.index(loss)
            sizes_axis, zeros_axis = axes[row, column], axes[row + 1, column]
            _draw_sizes_of_gradients(sizes_axis, panel, bins, colours)
            sizes_axis.set_title(f"{data}: loss on {loss}" if loss != "training" else f"{data}: training loss")
            chosen = table[(table["data"] == data) & (table["loss"] == loss)]
            names = [str(name) for name in chosen["model"]]
            zeros_axis.bar(names, 100 * chosen["zeros"], color=[colours[name] for name in chosen["model"]])
            zeros_axis.set_xticks([])
            zeros_axis.set_ylim(0, 100)
        for row in range(0, len(axes), 2):
            axes[row, 0].set_ylabel("share of the samples")
            axes[row + 1, 0].set_ylabel("exactly zero (%)")
        figure.suptitle(f"Gradients of the loss in the image (n = {table['n'].max()})")
        handles = [Line2D([], [], color=colour, linewidth=3, label=model) for model, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


def _draw_sizes_of_gradients(axis: Axes, panel: pd.DataFrame, bins: Any, colours: dict[Any, Any]) -> None:
    """Draw a histogram per model; those of samples without a gradient are missing in it."""
    for model, part in panel.groupby("model", sort=False):
        found = np.log10(part.loc[part["l2"] > 0, "l2"])
        weights = np.full(len(found), 1 / len(part))
        axis.hist(found, bins=bins, weights=weights, histtype="step", color=colours[model])
    axis.set_xlabel("log10 of the gradient's L2 norm")
