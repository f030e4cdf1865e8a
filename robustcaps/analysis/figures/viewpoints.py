"""How much worse networks are on views that they were not trained on."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from robustcaps.analysis.figures.style import STYLE, panel_grid

COLOURS = {"familiar": "#9ecae1", "novel": "#08519c"}
COLUMNS = 2
"""How many panels stand side by side."""
HIGH = 0.38
"""Of a bar, where the next model's begin at 1."""


def draw_views(table: pd.DataFrame) -> Figure:
    """Draw the errors on familiar and on novel views: two bars per model, a panel per dataset and angle."""
    ours = table[table["source"] == "measured"]
    panels = [
        (data, by, pd.concat([part, table[(table["source"] != "measured") & (table["by"] == by)]]))
        for (data, by), part in ours.groupby(["data", "by"], sort=False)
    ]
    most = max(len(panel) for _, _, panel in panels)
    style: Any = {**sns.axes_style("whitegrid"), **STYLE}
    with mpl.rc_context(style):
        size = {"width": 5.0, "height": 1.2 + 0.45 * most}
        figure, axes = panel_grid(len(panels), columns=COLUMNS, sharex=True, **size)
        for axis, (data, by, panel) in zip(axes, panels, strict=True):
            _draw_panel(axis, panel)
            axis.set_title(f"novel {by} ({data})")
            axis.set_xlabel("test error (%)")
        figure.suptitle("Errors on familiar and on novel viewpoints (whiskers: Wilson 95 %)")
        handles = [Patch(color=colour, label=f"{name} views") for name, colour in COLOURS.items()]
        handles.append(Patch(facecolor="white", edgecolor="0.4", hatch="///", label="published (smallNORB)"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_panel(axis: Axes, panel: pd.DataFrame) -> None:
    published = (panel["source"] != "measured").to_numpy()
    for shift, (name, colour) in zip((-HIGH / 2, HIGH / 2), COLOURS.items(), strict=True):
        errors = 100 * panel[name]
        ends = np.stack([errors - 100 * panel[f"{name}_low"], 100 * panel[f"{name}_high"] - errors])
        places = np.arange(len(panel)) + shift
        drawn = axis.barh(places, errors, HIGH, xerr=ends, color=colour, ecolor="0.2", capsize=2)
        for bar, hatched in zip(drawn, published, strict=True):
            if hatched:
                bar.set(hatch="///", edgecolor="white")
    labels = [
        f"{model}, {data}" if old else model
        for model, data, old in zip(panel["model"], panel["data"], published, strict=True)
    ]
    axis.set_yticks(range(len(panel)), labels)
    axis.set_ylim(len(panel) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
