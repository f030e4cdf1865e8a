"""Who sees both of two digits over each other, by how much they overlap."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from robustcaps.analysis.figures.style import STYLE, model_colours
from robustcaps.analysis.published import OVERLAP, OVERLAP_DATA

WIDTH = 0.8
"""Of the bars of all models together, where the next ones begin at 1."""


def draw_overlap(table: pd.DataFrame) -> Figure:
    """Draw the share of images with both digits right: a group of bars per part of the images, a panel per dataset."""
    panels = list(table.groupby(["data", "diagnostic"], sort=False))
    colours = model_colours(table)
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        figure = Figure(figsize=(5.0 * len(panels) + 2.4, 4.0), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, ((data, _), panel) in zip(axes, panels, strict=True):
            parts = list(panel["overlap"].unique())
            for place, (model, lines) in enumerate(panel.groupby("model", sort=False)):
                width = WIDTH / panel["model"].nunique()
                at = np.array([parts.index(part) for part in lines["overlap"]]) + (place + 0.5) * width - WIDTH / 2
                ends = [lines["both"] - lines["both_low"], lines["both_high"] - lines["both"]]
                axis.bar(at, lines["both"], width, yerr=ends, color=colours[model], ecolor="0.25", capsize=2)
            for (kind, share), dash in zip(OVERLAP.items(), ("--", ":"), strict=True):
                if data == OVERLAP_DATA:
                    axis.axhline(share, color="0.35", linestyle=dash, linewidth=1.2, label=f"{kind}, published")
            axis.set_xticks(range(len(parts)), parts)
            axis.set_title(str(data))
            axis.set_xlabel("overlap of the digits' boxes (%)")
            axis.set_ylim(0, 1)
            axis.grid(visible=False, axis="x")
        axes[0].set_ylabel("share with both digits right")
        whole = table.loc[table["overlap"] == "all", "n"].max()
        figure.suptitle(f"Two digits over each other (n = {whole}; bars: Wilson 95 %)")
        handles: list[Artist] = [Patch(color=colour, label=model) for model, colour in colours.items()]
        handles += next((lines for axis in axes if (lines := axis.get_legend_handles_labels()[0])), [])
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure
