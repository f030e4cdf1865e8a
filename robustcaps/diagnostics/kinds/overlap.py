"""Overlapping digits: how often a network recognises both, or one, by how much they overlap (Sabour et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Tables, diagnostic_kind
from robustcaps.utils.grid import Grid, make_grid, percent
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

KEYS = ["suite", "data", "model", "diagnostic"]
SHARES = ("both", "one_or_both")
ALL = "all"
QUANTILES = 3
"""Images are split into this many about equal parts by their overlap."""
PUBLISHED = {"capsules": 0.948, "CNN": 0.919}
"""The share of MultiMNIST images with both digits right; capsules with reconstruction."""
PUBLISHED_DATA = "multimnist"
PUBLISHED_NOTE = (
    "Published, both digits right (Sabour et al. 2017, table 1; far larger networks, trained on 60 million pairs): "
    f"capsules with reconstruction {100 * PUBLISHED['capsules']:.1f} %, baseline CNN {100 * PUBLISHED['CNN']:.1f} %."
)
DASHES: tuple[Any, ...] = ("--", ":")
"""Of the published shares."""
BAR_GROUP_WIDTH = 0.8
"""Width of the bars of all models together; the next group begins at 1."""


def tabulate_overlap(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return a line per model over all images, then one per third of them by overlap.

    both: the two highest logits are the two digits' classes; one_or_both: at least one is. overlap is the range of the
    share of one digit's box that lies in the other's, in %.
    """
    lines = []
    for names, part in rows.groupby(KEYS, sort=False):
        thirds = pd.qcut(part["overlap"], QUANTILES, labels=False, duplicates="drop")
        for third in [part, *(group for _, group in part.groupby(thirds))]:
            bounds = [f"{100 * end:.0f}" for end in (third["overlap"].min(), third["overlap"].max())]
            overlap = ALL if third is part else "-".join(bounds)
            both, one = (int((third["found"] >= least).sum()) for least in (2, 1))
            counts = {"overlap": overlap, "n": len(third), "both": both, "one_or_both": one}
            lines.append({**dict(zip(KEYS, names, strict=True)), **counts})
    table = pd.DataFrame(lines)
    for share in SHARES:
        table[f"{share}_low"], table[f"{share}_high"] = wilson(table[share], table["n"])
        table[share] = table[share] / table["n"]
    return table[[*KEYS, "overlap", "n", *(f"{share}{end}" for share in SHARES for end in ("", "_low", "_high"))]]


def overlap_grids(table: pd.DataFrame) -> list[Grid]:
    """Return overlaps for readers, the published accuracies below."""
    columns = ["data", "model", "overlap of the boxes %", "n", "both right %", "at least one right %"]
    rows = [
        [*(str(line[name]) for name in ("data", "model", "overlap", "n")), *(percent(line, share) for share in SHARES)]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows, note=PUBLISHED_NOTE, numeric=columns[3:])]


def draw_overlap(table: pd.DataFrame) -> Figure:
    """Draw the share of images with both digits right: a group of bars per part of the images, a panel per dataset.

    Args:
        table: One line per model and part of the images (`results.tables["overlap"]`, or overlap.csv).

    Example:
        rc.draw_overlap(pd.read_csv("results/overlap/overlap.csv"))
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from robustcaps.utils.figure_layout import make_panels, set_caption, set_labels, set_title, set_xlabel, set_ylabel
    from robustcaps.utils.figure_style import model_colours, scaled, white_grid

    panels = list(table.groupby(["data", "diagnostic"], sort=False))
    colours = model_colours(table)
    bars: Any = {"ecolor": "0.25", "capsize": scaled(2), "error_kw": {"elinewidth": scaled(1.5)}}
    with white_grid():
        published = [
            (share, Line2D([], [], color="0.35", linestyle=dash, linewidth=scaled(1.2), label=f"{network}, published"))
            for (network, share), dash in zip(PUBLISHED.items(), DASHES, strict=True)
            if PUBLISHED_DATA in set(table["data"])
        ]
        legend: list[Artist] = [Patch(color=colour, label=model) for model, colour in colours.items()]
        legend += [line for _, line in published]
        figure, axes = make_panels([len(panels)], columns=4, width=5.0, height=4.0, legend=legend, sharey=True)
        for axis, ((data, _), panel) in zip(axes, panels, strict=True):
            parts = list(panel["overlap"].unique())
            for place, (model, lines) in enumerate(panel.groupby("model", sort=False)):
                width = BAR_GROUP_WIDTH / panel["model"].nunique()
                left = (place + 0.5) * width - BAR_GROUP_WIDTH / 2
                at = np.array([parts.index(part) for part in lines["overlap"]]) + left
                ends = [lines["both"] - lines["both_low"], lines["both_high"] - lines["both"]]
                axis.bar(at, lines["both"], width, yerr=ends, color=colours[model], **bars)
            for share, line in published if data == PUBLISHED_DATA else ():
                axis.axhline(share, color="0.35", linestyle=line.get_linestyle(), linewidth=scaled(1.2))
            set_labels(axis, parts)
            set_title(axis, str(data))
            set_xlabel(axis, "overlap of the digits' boxes (%)")
            axis.set_ylim(0, 1)
            axis.grid(visible=False, axis="x")
        set_ylabel(axes[0], "share with both digits right")
        total = table.loc[table["overlap"] == ALL, "n"].max()
        set_caption(figure, f"Two overlapping digits (n = {total}; bars: Wilson 95 %)")
    return figure


def draw(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of overlaps."""
    yield "overlap", draw_overlap(tables["overlap"])


OVERLAP = diagnostic_kind(
    DiagnosticKind(
        name="overlap",
        measure="robustcaps.diagnostics.overlap:overlap_rows",
        tables=(KindTable("overlap", tabulate_overlap, overlap_grids),),
        title="Two overlapping digits",
        note="Both right: the two highest logits are the two digits. Overlap: share of one digit's box in the other's.",
        draw=draw,
    )
)
