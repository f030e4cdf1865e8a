"""Robust AUC of groups of models, a panel per dataset and threat model."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.utils.figure_layout import make_panels, set_caption, set_title, set_xlabel
from robustcaps.utils.figure_style import scaled, white_grid

DIFFERENT, SIMILAR = "#d55e00", "0.25"
"""Colours of groups that differ from the first one significantly, and of the others."""


def draw_auc(table: pd.DataFrame) -> Figure:
    """Draw the AUC of each group with its interval, and those of its least and most robust model.

    Args:
        table: Robust AUC by group (`results.tables["auc"]`, or auc.csv).

    Example:
        rc.draw_auc(rc.load_results("results/routing").tables["auc"])
    """
    panels = list(table.groupby(["data", "norm", "unit"], sort=False))
    groups = list(table["group"].unique())
    with white_grid():
        figure, axes = make_panels(
            [len(panels)], columns=2, width=6.4, height=1.2 + 0.32 * len(groups), shrinks=False, narrowest=4.0
        )
        for axis, ((data, norm, unit), part) in zip(axes, panels, strict=True):
            for line in part.to_dict("records"):
                y = groups.index(line["group"])
                colour = DIFFERENT if line["p"] < ALPHA else SIMILAR
                bar = [[line["auc"] - line["auc_low"]], [line["auc_high"] - line["auc"]]]
                axis.errorbar(
                    line["auc"], y, xerr=bar, color=colour, marker="o", markersize=scaled(6), capsize=scaled(3)
                )
                axis.plot([line["auc_min"], line["auc_max"]], [y, y], "|", color=colour, markersize=scaled(11))
            reference = part[part["group"] == part["reference"]]["auc"].iloc[0]
            axis.axvline(reference, color="0.6", linewidth=scaled(1), linestyle="--")
            axis.set_yticks(range(len(groups)), groups)
            axis.set_ylim(len(groups) - 0.5, -0.5)
            axis.set_xlim(left=0)
            set_title(axis, f"{data} ({norm}, {unit})")
            set_xlabel(axis, "robust AUC: accuracy under the worst case, mean over eps")
        reference = table["reference"].iloc[0]
        caption = f"Bars: 95 %; ticks: single models; orange: differs from '{reference}' (dashed), p < 0.05 by Holm"
        set_caption(figure, caption)
    return figure
