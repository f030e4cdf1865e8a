"""Robust AUC of groups of models, a panel per dataset and threat model."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.utils.figure_style import panel_grid, white_grid


def draw_auc(table: pd.DataFrame) -> Figure:
    """Draw the AUC of each group with its interval, and those of its least and most robust model."""
    panels = list(table.groupby(["data", "norm", "unit"], sort=False))
    groups = list(table["group"].unique())
    with white_grid():
        figure, axes = panel_grid(len(panels), columns=2, width=6.4, height=1.2 + 0.32 * len(groups))
        for axis, ((data, norm, unit), part) in zip(axes, panels, strict=True):
            for line in part.to_dict("records"):
                y = groups.index(line["group"])
                colour = "C3" if line["p"] < ALPHA else "0.25"
                bar = [[line["auc"] - line["auc_low"]], [line["auc_high"] - line["auc"]]]
                axis.errorbar(line["auc"], y, xerr=bar, color=colour, marker="o", markersize=6, capsize=3)
                axis.plot([line["auc_min"], line["auc_max"]], [y, y], "|", color=colour, markersize=11)
            reference = part[part["group"] == part["reference"]]["auc"].iloc[0]
            axis.axvline(reference, color="0.6", linewidth=1, linestyle="--")
            axis.set_yticks(range(len(groups)), groups)
            axis.set_ylim(len(groups) - 0.5, -0.5)
            axis.set_xlim(left=0)
            axis.set_title(f"{data} ({norm}, {unit})")
            axis.set_xlabel("robust AUC: accuracy under the worst case, mean over eps")
        reference = table["reference"].iloc[0]
        figure.suptitle(f"Bars: 95 %; ticks: single models; red: differs from '{reference}' (dashed), p < 0.05 by Holm")
    return figure
