"""Figures of the attacks of a run; nothing is computed here that a table does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd
from matplotlib.figure import Figure

from robustcaps.analysis.figures.cost import comparable, draw_cost
from robustcaps.analysis.figures.curves import draw_all_curves
from robustcaps.analysis.figures.matrices import draw_target_maps, draw_transfer_map
from robustcaps.analysis.figures.perturbation_norms import draw_means, draw_norms
from robustcaps.analysis.figures.robust_auc import draw_auc
from robustcaps.analysis.tables.attack_tables import AttackRows


def draw_attack_figures(
    attacks: AttackRows, tables: Mapping[str, pd.DataFrame], *, published: bool = False
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for everything that the attacks have something to show of."""
    if attacks.rows.empty:
        return
    table = tables["table"]
    if not tables["auc"].empty:
        yield "auc", draw_auc(tables["auc"])
    yield from draw_all_curves(table, published=published)
    if len(set(comparable(table)["attack"])) > 1:
        yield "cost", draw_cost(table)
    if not attacks.norms.empty:
        yield "distances", draw_norms(attacks.norms)
        distances = tables["distances"]
        in_l2 = distances[(distances["norm"] == "l2") & (distances["goal"] == "untargeted")]
        if published and not in_l2.empty:
            yield "means", draw_means(in_l2)
    if not tables["transfer"].empty:
        yield "transfer", draw_transfer_map(tables["transfer"])
    if not tables["targets"].empty:
        yield "targets", draw_target_maps(tables["targets"])
