"""Heat maps: from which model to which images transfer, and which class can be turned into which."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustcaps.analysis.figures.selection import MAX_DRAWN
from robustcaps.analysis.tables.matrices import SWEEP, TARGETED_SWEEP, at_largest_eps
from robustcaps.utils.figure_style import STYLE, panel_grid

PLAIN_STYLE = {**STYLE, "text.parse_math": False}
"""Names between dollar signs are no formulas, also where seaborn measures them."""
COLUMNS = 4
"""How many heat maps stand side by side."""


def draw_transfer_map(matrix: pd.DataFrame) -> Figure:
    """Draw the share of images crafted on a surrogate (rows) that fool a model (columns), at the largest eps."""
    panels = list(at_largest_eps(matrix, SWEEP).groupby([*SWEEP, "eps"], sort=False))
    with mpl.rc_context(PLAIN_STYLE):
        rows = max(part["attack"].nunique() for _, part in panels)
        figure, axes = panel_grid(len(panels), columns=COLUMNS, width=5.2, height=2.4 + 0.55 * rows)
        for axis, ((data, norm, _, eps), part) in zip(axes, panels, strict=True):
            names = part["attack"].str.removeprefix("transfer ")
            _heat(axis, part.assign(attack=names), rows="attack", columns="model")
            axis.set_title(f"{data}, eps {eps:g} ({norm})")
            axis.set_ylabel("crafted on")
            axis.set_xlabel("tried on")
        figure.suptitle("Transfer: share fooled")
    return figure


def draw_target_maps(matrix: pd.DataFrame) -> Figure:
    """Draw how often a targeted attack turns a class (rows) into another (columns), at the largest eps of each."""
    whole = list(at_largest_eps(matrix, TARGETED_SWEEP).groupby([*TARGETED_SWEEP, "eps"], sort=False))
    panels, note = whole[:MAX_DRAWN], f"; {MAX_DRAWN} of {len(whole)}" if len(whole) > MAX_DRAWN else ""
    with mpl.rc_context(PLAIN_STYLE):
        figure, axes = panel_grid(len(panels), columns=COLUMNS, width=3.4, height=3.3)
        for axis, ((data, model, attack, norm, _, eps), part) in zip(axes, panels, strict=True):
            _heat(axis, part, rows="label", columns="target")
            axis.set_title(f"{model}, {data}\n{attack}, eps {eps:g} ({norm})")
        figure.suptitle(f"Targeted: share of a class (row) predicted as the target (column){note}")
    return figure


def _heat(axis: Axes, part: pd.DataFrame, *, rows: str, columns: str) -> None:
    shares: Any = part.pivot_table(index=rows, columns=columns, values="success", sort=False)
    if pd.api.types.is_numeric_dtype(shares.index):
        classes = range(max(*shares.index, *shares.columns) + 1)
        shares = shares.reindex(index=classes, columns=classes)
    look = {"vmin": 0, "vmax": 1, "cmap": "rocket_r", "annot": True, "fmt": ".2f", "cbar": False, "linewidths": 0.5}
    sns.heatmap(shares, ax=axis, annot_kws={"size": 8}, **look)
    axis.tick_params(axis="y", rotation=0)
