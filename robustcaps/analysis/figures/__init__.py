"""Figures of what a run has found; nothing is computed here that a table does not say."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from robustcaps.analysis.figures.cost import comparable, draw_cost
from robustcaps.analysis.figures.curves import draw_all_curves
from robustcaps.analysis.figures.detection import draw_detection
from robustcaps.analysis.figures.diagnoses import draw_gradients, draw_verdicts
from robustcaps.analysis.figures.matrices import draw_target_maps, draw_transfer_map
from robustcaps.analysis.figures.overlap import draw_overlap
from robustcaps.analysis.figures.perturbation_norms import draw_means, draw_sizes
from robustcaps.analysis.figures.style import STYLE, save
from robustcaps.analysis.figures.viewpoints import draw_views
from robustcaps.analysis.tables.diagnoses import tabulate_gradients
from robustcaps.analysis.tables.matrices import target_matrix, transfer_matrix
from robustcaps.analysis.tables.perturbation_norms import distances, smallest_sizes

__all__ = ["STYLE", "draw_all", "draw_diagnoses", "save"]


def draw_all(table: pd.DataFrame, rows: pd.DataFrame, *, published: bool = False) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for everything that there is something to show of."""
    if rows.empty:
        return
    yield from draw_all_curves(table, published=published)
    if len(set(comparable(table)["attack"])) > 1:
        yield "cost", draw_cost(table)
    if not (sizes := smallest_sizes(rows)).empty:
        yield "distances", draw_sizes(sizes)
        found = distances(rows)
        in_l2 = found[(found["norm"] == "l2") & (found["goal"] == "untargeted")]
        if published and not in_l2.empty:
            yield "means", draw_means(in_l2)
    if not (transferred := transfer_matrix(rows)).empty:
        yield "transfer", draw_transfer_map(transferred)
    if not (targeted := target_matrix(rows)).empty:
        yield "targets", draw_target_maps(targeted)


def draw_diagnoses(
    verdicts: pd.DataFrame,
    gradients: pd.DataFrame,
    detection: pd.DataFrame,
    overlap: pd.DataFrame,
    views: pd.DataFrame,
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for the tables of verdicts, detection, overlap and views, and for the rows of gradients."""
    if not verdicts.empty:
        yield "verdicts", draw_verdicts(verdicts)
    if not gradients.empty:
        yield "gradients", draw_gradients(gradients, tabulate_gradients(gradients))
    if not detection.empty:
        yield "detection", draw_detection(detection)
    if not overlap.empty:
        yield "overlap", draw_overlap(overlap)
    if not views.empty:
        yield "views", draw_views(views)
