"""Gradients by loss: how many entries are exactly zero, and how large the others are (Hinton et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Tables, diagnostic_kind
from robustcaps.utils.grid import Grid, make_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = ["suite", "data", "model", "diagnostic", "loss"]
BINS = 25


def tabulate_gradients(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per (model, loss): exact zeros, norms, and orders of magnitude below the first model.

    zeros is the mean share of entries that are exactly zero, none the share of samples whose entries all are;
    log10_l2 is log10 of the median L2 norm, orders the first model's log10_l2 minus this one's.
    """
    lines = []
    for names, part in rows.groupby(KEYS, sort=False):
        median = float(part["l2"].median())
        lines.append(
            {
                **dict(zip(KEYS, names, strict=True)),
                "n": len(part),
                "zeros": part["zeros"].mean(),
                "none": (part["zeros"] == 1).mean(),
                "not_finite": (~part["finite"]).mean(),
                "log10_l2": np.log10(median) if median > 0 else -np.inf,
            }
        )
    table = pd.DataFrame(lines)
    first = table.groupby(["suite", "data", "diagnostic", "loss"], sort=False)["log10_l2"].transform("first")
    return table.assign(orders=first - table["log10_l2"])


def gradient_grids(table: pd.DataFrame) -> list[Grid]:
    """Return gradients by loss for readers."""
    columns = ["data", "model", "loss", "n", "zero entries %", "samples without gradient %"]
    columns += ["log10 of the median norm", "orders below the first model"]
    rows = [
        [
            *(str(line[name]) for name in ("data", "model", "loss", "n")),
            *(f"{100 * line[name]:.1f}" for name in ("zeros", "none")),
            *(f"{line[name]:.1f}" for name in ("log10_l2", "orders")),
        ]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows, numeric=columns[3:])]


def draw_gradients(rows: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw gradient norms and shares of exact zeros: a column per loss, two rows of panels per dataset."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from robustcaps.utils.figure_style import model_colours, white_grid

    datasets, losses = list(rows["data"].unique()), list(rows["loss"].unique())
    colours = model_colours(table)
    norms = np.log10(rows.loc[rows["l2"] > 0, "l2"])
    bins = np.linspace(norms.min(), norms.max(), BINS) if len(norms) else np.linspace(-1.0, 0.0, BINS)
    with white_grid():
        figure = Figure(figsize=(3.6 * len(losses) + 2.2, 0.6 + 4.2 * len(datasets)), layout="constrained")
        shape = 2 * len(datasets), len(losses)
        axes = figure.subplots(*shape, squeeze=False, sharey="row", height_ratios=(3, 2) * len(datasets))
        for (data, loss), panel in rows.groupby(["data", "loss"], sort=False):
            row, column = 2 * datasets.index(data), losses.index(loss)
            norms_axis, zeros_axis = axes[row, column], axes[row + 1, column]
            _draw_norms(norms_axis, panel, bins, colours)
            norms_axis.set_title(f"{data}: loss on {loss}" if loss != "training" else f"{data}: training loss")
            chosen = table[(table["data"] == data) & (table["loss"] == loss)]
            names = [str(name) for name in chosen["model"]]
            zeros_axis.bar(names, 100 * chosen["zeros"], color=[colours[name] for name in chosen["model"]])
            zeros_axis.set_xticks([])
            zeros_axis.set_ylim(0, 100)
        for row in range(0, len(axes), 2):
            axes[row, 0].set_ylabel("share of the samples")
            axes[row + 1, 0].set_ylabel("exactly zero (%)")
        figure.suptitle(f"Gradients of the loss with respect to the image (n = {table['n'].max()})")
        handles = [Line2D([], [], color=colour, linewidth=3, label=model) for model, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure


def _draw_norms(axis: Axes, panel: pd.DataFrame, bins: Any, colours: dict[Any, Any]) -> None:
    """Draw a histogram of norms per model; samples without a gradient are missing in it."""
    for model, part in panel.groupby("model", sort=False):
        found = np.log10(part.loc[part["l2"] > 0, "l2"])
        weights = np.full(len(found), 1 / len(part))
        axis.hist(found, bins=bins, weights=weights, histtype="step", color=colours[model])
    axis.set_xlabel("log10 of the gradient's L2 norm")


def draw(rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of the gradients."""
    yield "gradients", draw_gradients(rows, tables["gradients"])


GRADIENTS = diagnostic_kind(
    DiagnosticKind(
        name="gradients",
        measure="robustcaps.diagnostics.gradients:measure_gradients",
        tables=(KindTable("gradients", tabulate_gradients, gradient_grids),),
        title="Gradients by loss",
        note=(
            "Entries of d loss / d image that are exactly zero, samples without a nonzero entry, log10 of the median "
            "L2 norm, and how many orders of magnitude that is below the first model's."
        ),
        draw=draw,
        passes=9.0,
    )
)
