"""Figures of the attacks of a run, each from a table; nothing is computed here that a table does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from robustcaps.analysis.figures.cost import comparable, draw_cost
from robustcaps.analysis.figures.curves import draw_accuracy, draw_targeted, has_curve
from robustcaps.analysis.figures.matrices import draw_target_maps, draw_transfer_map
from robustcaps.analysis.figures.perturbation_norms import draw_means, draw_norms
from robustcaps.analysis.figures.robust_auc import draw_auc
from robustcaps.analysis.tables.attack_tables import AttackRows

__all__ = [
    "attack_figures",
    "draw_accuracy",
    "draw_auc",
    "draw_cost",
    "draw_means",
    "draw_norms",
    "draw_target_maps",
    "draw_targeted",
    "draw_transfer_map",
]


def attack_figures(
    attacks: AttackRows, tables: Mapping[str, pd.DataFrame], *, published: bool = False
) -> dict[str, Callable[[], Figure]]:
    """Return what draws each figure, by name, of everything that the attacks have something to show of."""
    if attacks.rows.empty:
        return {}
    table, figures = tables["table"], dict[str, Callable[[], Figure]]()
    if not tables["auc"].empty:
        figures["auc"] = partial(draw_auc, tables["auc"])
    for name, draw in (("accuracy", draw_accuracy), ("targeted", draw_targeted)):
        if has_curve(table, name):
            figures[name] = partial(draw, table, published=published)
    if len(set(comparable(table)["attack"])) > 1:
        figures["cost"] = partial(draw_cost, table)
    if not attacks.norms.empty:
        figures["distances"] = partial(draw_norms, attacks.norms)
        distances = tables["distances"]
        in_l2 = distances[(distances["norm"] == "l2") & (distances["goal"] == "untargeted")]
        if published and not in_l2.empty:
            figures["means"] = partial(draw_means, in_l2)
    if not tables["transfer"].empty:
        figures["transfer"] = partial(draw_transfer_map, tables["transfer"])
    if not tables["targets"].empty:
        figures["targets"] = partial(draw_target_maps, tables["targets"])
    return figures
