"""How large a perturbation has to be: the share of samples that withstand every smaller one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from robustcaps.analysis.figures.curves import line_style
from robustcaps.analysis.published import SIZES_SOURCE, published_sizes
from robustcaps.utils.figure_layout import make_panels, set_caption, set_labels, set_title, set_xlabel, set_ylabel
from robustcaps.utils.figure_style import model_colours, scaled, white_grid


def draw_norms(sizes: pd.DataFrame) -> Figure:
    """Draw, for every attack that minimises, the share of samples not fooled by a perturbation of some size or less.

    Args:
        sizes: The smallest perturbation of each sample and attack (`results.attacks.norms`).

    Example:
        rc.draw_norms(rc.load_results("out/minimal-l2").attacks.norms)
    """
    panels = list(sizes.groupby(["data", "norm"], sort=False))
    colours, attacks = model_colours(sizes), list(sizes["attack"].unique())
    dashes = {name: line_style(place)["linestyle"] for place, name in enumerate(attacks)}
    with white_grid():
        legend = [
            Line2D([], [], color=colour, linewidth=scaled(3), label=model) for model, colour in colours.items()
        ] + [Line2D([], [], color="0.2", linestyle=dash, label=name) for name, dash in dashes.items()]
        figure, axes = make_panels([len(panels)], columns=4, width=4.6, height=4.0, legend=legend, sharey=True)
        for axis, ((data, norm), panel) in zip(axes, panels, strict=True):
            for (model, attack), part in panel.groupby(["model", "attack"], sort=False):
                _draw_survivors(axis, part["size"].to_numpy(), {"color": colours[model], "linestyle": dashes[attack]})
            set_title(axis, str(data))
            set_xlabel(axis, f"size of the smallest perturbation ({norm})")
            axis.set_ylim(-0.02, 1.02)
            axis.set_xlim(left=0)
        set_ylabel(axes[0], "share of samples not fooled")
        set_caption(figure, "Smallest perturbations (dots: medians)")
    return figure


def _draw_survivors(axis: Axes, sizes: NDArray[np.float64], style: dict[str, Any]) -> None:
    """Draw the share of samples that withstand every smaller perturbation, and its median."""
    found = np.sort(sizes[np.isfinite(sizes)])
    left = 1 - np.arange(len(found) + 1) / len(sizes)
    axis.step([0.0, *found], left, where="post", **style)
    if len(found) >= len(sizes) / 2:
        median = found[(len(sizes) + 1) // 2 - 1]
        axis.plot(median, 0.5, marker="o", markersize=scaled(5), color=style["color"])


MARKS = {"CNN": "x", "capsules": "D"}
"""How published means are marked."""


def draw_means(distances: pd.DataFrame) -> Figure:
    """Draw the mean L2 of the smallest perturbations by attack, with its interval, beside the published means.

    Args:
        distances: Untargeted L2 attacks of `results.tables["distances"]`, or of distances.csv.

    Example:
        rc.draw_means(pd.read_csv("results/minimal-l2/distances.csv").query("goal == 'untargeted'"))
    """
    panels = list(distances.groupby("data", sort=False))
    colours, attacks = model_colours(distances), list(distances["attack"].unique())
    with white_grid():
        grey: dict[str, Any] = {"color": "0.3", "linestyle": "", "markerfacecolor": "none", "markersize": scaled(6)}
        dot: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": scaled(6)}
        legend = [Line2D([], [], color=colour, label=model, **dot) for model, colour in colours.items()]
        legend += [Line2D([], [], marker=mark, label=f"{kind}, published", **grey) for kind, mark in MARKS.items()]
        figure, axes = make_panels(
            [len(panels)], columns=4, width=4.6, height=4.0, legend=legend, narrowest=4.0, sharey=True
        )
        for axis, (data, panel) in zip(axes, panels, strict=True):
            for place, (model, lines) in enumerate(panel.groupby("model", sort=False)):
                at = np.array([attacks.index(attack) for attack in lines["attack"]]) + 0.12 * (place + 1)
                ends = [lines["mean"] - lines["mean_low"], lines["mean_high"] - lines["mean"]]
                axis.errorbar(at, lines["mean"], yerr=ends, color=colours[model], capsize=scaled(3), **dot)
            for kind, means in published_sizes(str(data)).items():
                at = np.array([attacks.index(attack) for attack in means if attack in attacks]) - 0.12
                values = [mean for attack, mean in means.items() if attack in attacks]
                axis.plot(at, values, MARKS[kind], **{name: grey[name] for name in grey if name != "linestyle"})
            set_labels(axis, attacks)
            set_title(axis, str(data))
            axis.set_ylim(bottom=0)
            axis.grid(visible=False, axis="x")
        set_ylabel(axes[0], "mean L2 of the smallest perturbation")
        set_caption(figure, f"Smallest perturbations that fool (bars: 95 %; published: {SIZES_SOURCE})")
    return figure
