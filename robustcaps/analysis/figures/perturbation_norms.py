"""How large a perturbation has to be: the share of samples that withstand every smaller one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from robustcaps.analysis.figures.curves import line_style
from robustcaps.analysis.published import SIZES_SOURCE, published_sizes
from robustcaps.utils.figure_style import model_colours, white_grid


def draw_norms(sizes: pd.DataFrame) -> Figure:
    """Draw, for every attack that minimises, the share of samples not fooled by a perturbation of some size or less."""
    panels = list(sizes.groupby(["data", "norm"], sort=False))
    colours, attacks = model_colours(sizes), list(sizes["attack"].unique())
    with white_grid():
        figure = Figure(figsize=(4.6 * len(panels) + 2.6, 4.0), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, ((data, norm), panel) in zip(axes, panels, strict=True):
            for (model, attack), part in panel.groupby(["model", "attack"], sort=False):
                found = np.sort(part.loc[np.isfinite(part["size"]), "size"].to_numpy())
                left = 1 - np.arange(len(found) + 1) / len(part)
                dash = line_style(attacks.index(attack))["linestyle"]
                axis.step([0.0, *found], left, where="post", color=colours[model], linestyle=dash)
                if len(found) >= len(part) / 2:
                    axis.plot(found[(len(part) + 1) // 2 - 1], 0.5, marker="o", markersize=5, color=colours[model])
            axis.set_title(str(data))
            axis.set_xlabel(f"size of the smallest perturbation ({norm})")
            axis.set_ylim(-0.02, 1.02)
            axis.set_xlim(left=0)
        axes[0].set_ylabel("share of samples not fooled")
        figure.suptitle("Smallest perturbations (dots: medians)")
        handles = [Line2D([], [], color=colour, linewidth=3, label=model) for model, colour in colours.items()]
        dashes = [(name, line_style(place)["linestyle"]) for place, name in enumerate(attacks)]
        handles += [Line2D([], [], color="0.2", linestyle=dash, label=name) for name, dash in dashes]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


MARKS = {"CNN": "x", "capsules": "D"}
"""How published means are marked."""


def draw_means(distances: pd.DataFrame) -> Figure:
    """Draw the mean L2 of the smallest perturbations by attack, with its interval, beside the published means."""
    panels = list(distances.groupby("data", sort=False))
    colours, attacks = model_colours(distances), list(distances["attack"].unique())
    with white_grid():
        figure = Figure(figsize=(4.6 * len(panels) + 2.6, 4.0), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axis, (data, panel) in zip(axes, panels, strict=True):
            for place, (model, lines) in enumerate(panel.groupby("model", sort=False)):
                at = np.array([attacks.index(attack) for attack in lines["attack"]]) + 0.12 * (place + 1)
                ends = [lines["mean"] - lines["mean_low"], lines["mean_high"] - lines["mean"]]
                axis.errorbar(at, lines["mean"], yerr=ends, fmt="o", color=colours[model], capsize=3)
            for kind, means in published_sizes(str(data)).items():
                at = np.array([attacks.index(attack) for attack in means if attack in attacks]) - 0.12
                values = [mean for attack, mean in means.items() if attack in attacks]
                axis.plot(at, values, MARKS[kind], color="0.3", markerfacecolor="none")
            axis.set_xticks(range(len(attacks)), attacks)
            axis.set_title(str(data))
            axis.set_ylim(bottom=0)
            axis.grid(visible=False, axis="x")
        axes[0].set_ylabel("mean L2 of the smallest perturbation")
        figure.suptitle(f"Smallest perturbations that fool (bars: 95 %; published: {SIZES_SOURCE})")
        handles = [
            Line2D([], [], color=colour, marker="o", linestyle="", label=model) for model, colour in colours.items()
        ]
        grey: dict[str, Any] = {"color": "0.3", "linestyle": "", "markerfacecolor": "none"}
        handles += [Line2D([], [], marker=mark, label=f"{kind}, published", **grey) for kind, mark in MARKS.items()]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure
