"""Heat maps: from which model to which images transfer, and which class can be turned into which."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustcaps.analysis.figures.selection import MAX_DRAWN
from robustcaps.analysis.tables.matrices import SWEEP, TARGETED_SWEEP, at_largest_eps, class_names
from robustcaps.utils.figure_layout import make_panels, name_panels, set_caption, set_title, set_xlabel, set_ylabel
from robustcaps.utils.figure_style import current_style, scaled

COLUMNS = 4
"""How many heat maps stand side by side."""


def draw_transfer_map(matrix: pd.DataFrame) -> Figure:
    """Draw the share of images crafted on a surrogate (rows) that fool a model (columns), at the largest eps.

    Args:
        matrix: How often images transfer (`results.tables["transfer"]`, or transfer.csv).

    Example:
        rc.draw_transfer_map(pd.read_csv("results/blackbox/transfer.csv"))
    """
    panels = list(at_largest_eps(matrix, SWEEP).groupby([*SWEEP, "eps"], sort=False))
    with _plain_style():
        rows = max(part["attack"].nunique() for _, part in panels)
        figure, axes = make_panels(
            [len(panels)], columns=COLUMNS, width=5.2, height=2.4 + 0.55 * rows, shrinks=False, narrowest=4.0
        )
        titles, common = name_panels([(data, f"eps {eps:g} ({norm})") for (data, norm, _, eps), _ in panels])
        for axis, (_, part), title in zip(axes, panels, titles, strict=True):
            names = part["attack"].str.removeprefix("transfer ")
            _heat(axis, part.assign(attack=names), rows="attack", columns="model")
            set_title(axis, title)
            set_ylabel(axis, "crafted on")
            set_xlabel(axis, "tried on")
        set_caption(figure, "Transfer: fooled (%)", common)
    return figure


def draw_target_maps(matrix: pd.DataFrame) -> Figure:
    """Draw how often a targeted attack turns a class (rows) into another (columns), at the largest eps of each.

    Args:
        matrix: How often each class is turned into which (`results.tables["targets"]`, or targets.csv).

    Example:
        rc.draw_target_maps(pd.read_csv("results/attacks/targets.csv"))
    """
    whole = list(at_largest_eps(matrix, TARGETED_SWEEP).groupby([*TARGETED_SWEEP, "eps"], sort=False))
    panels, note = whole[:MAX_DRAWN], f"; {MAX_DRAWN} of {len(whole)}" if len(whole) > MAX_DRAWN else ""
    with _plain_style():
        figure, axes = make_panels([len(panels)], columns=COLUMNS, width=3.4, height=3.3)
        keys = [(model, data, attack, f"eps {eps:g} ({norm})") for (data, model, attack, norm, _, eps), _ in panels]
        titles, common = name_panels(keys)
        for axis, (_, part), title in zip(axes, panels, titles, strict=True):
            _heat(axis, part, rows="label", columns="target", names=class_names(part))
            set_title(axis, title)
            set_xlabel(axis, "target" if axis.get_subplotspec().is_last_row() else "")  # type: ignore[union-attr]
            set_ylabel(axis, "class" if axis.get_subplotspec().is_first_col() else "")  # type: ignore[union-attr]
        set_caption(figure, f"Targeted: predicted as the target (%), by class{note}", common)
    return figure


def _plain_style() -> AbstractContextManager[None]:
    """Return the current style without formulas: names between dollar signs are names, also where seaborn measures."""
    return mpl.rc_context({**current_style().rc, "text.parse_math": False})


def _heat(axis: Axes, part: pd.DataFrame, *, rows: str, columns: str, names: Mapping[int, str] | None = None) -> None:
    """Draw success in percent as a heat map; `names` are those of classes, each of which has a row and a column."""
    shares: Any = 100 * part.pivot_table(index=rows, columns=columns, values="success", sort=False)
    if names is not None:
        shares = shares.reindex(index=list(names), columns=list(names)).rename(index=names, columns=names)
    size = 0.8 * current_style().font
    look = {"vmin": 0, "vmax": 100, "cmap": "rocket_r", "annot": True, "fmt": ".0f", "cbar": False}
    sns.heatmap(shares, ax=axis, annot_kws={"size": size}, linewidths=scaled(0.5), **look)
    axis.tick_params(axis="y", rotation=0)
