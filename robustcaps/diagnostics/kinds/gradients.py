"""Gradients by loss: how many entries are exactly zero, and how large the others are (Hinton et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Tables, diagnostic_kind
from robustcaps.utils.grid import Grid, make_grid

if TYPE_CHECKING:
    from altair import TopLevelMixin
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


def draw_gradients(rows: pd.DataFrame) -> Figure:
    """Draw gradient norms and shares of exact zeros: two panels per dataset and loss.

    Args:
        rows: One row per sample, model and loss (`results.rows("gradients")`, or of `rc.measure_gradients`).

    Example:
        rc.draw_gradients(rc.load_results("out/quick").rows("gradients"))
    """
    from matplotlib.lines import Line2D

    from robustcaps.utils.figure_layout import make_panels, set_caption, set_title, set_ylabel
    from robustcaps.utils.figure_style import model_colours, scaled, white_grid

    table = tabulate_gradients(rows)
    pairs = list(rows.groupby(["data", "loss"], sort=False))
    colours = model_colours(table)
    norms = np.log10(rows.loc[rows["l2"] > 0, "l2"])
    bins = np.linspace(norms.min(), norms.max(), BINS) if len(norms) else np.linspace(-1.0, 0.0, BINS)
    with white_grid():
        legend = [Line2D([], [], color=colour, linewidth=scaled(3), label=model) for model, colour in colours.items()]
        figure, axes = make_panels([2] * len(pairs), columns=2, width=3.8, height=3.0, legend=legend)
        for ((data, loss), panel), norms_axis, zeros_axis in zip(pairs, axes[::2], axes[1::2], strict=True):
            _draw_norms(norms_axis, panel, bins, colours)
            set_title(norms_axis, f"{data}: loss on {loss}" if loss != "training" else f"{data}: training loss")
            chosen = table[(table["data"] == data) & (table["loss"] == loss)]
            names = [str(name) for name in chosen["model"]]
            zeros_axis.bar(names, 100 * chosen["zeros"], color=[colours[name] for name in chosen["model"]])
            zeros_axis.set_xticks([])
            zeros_axis.set_ylim(0, 100)
            set_ylabel(norms_axis, "share of the samples")
            set_ylabel(zeros_axis, "entries exactly zero (%)")
        set_caption(figure, f"Gradients of the loss with respect to the image (n = {table['n'].max()})")
    return figure


def _draw_norms(axis: Axes, panel: pd.DataFrame, bins: Any, colours: dict[Any, Any]) -> None:
    """Draw a histogram of norms per model; samples without a gradient are missing in it."""
    for model, part in panel.groupby("model", sort=False):
        found = np.log10(part.loc[part["l2"] > 0, "l2"])
        weights = np.full(len(found), 1 / len(part))
        axis.hist(found, bins=bins, weights=weights, histtype="step", color=colours[model])
    axis.set_xlabel("log10 of the L2 norm")


def draw(rows: pd.DataFrame, _tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of the gradients."""
    yield "gradients", draw_gradients(rows)


def charts(rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, str, TopLevelMixin]]:
    """Yield the charts of exact zeros and of gradient norms, a line per model and loss."""
    table = tables["gradients"]
    yield "gradient-zeros", "Entries of the gradient that are exactly zero", chart_zeros(table)
    norms = tabulate_norms(rows)
    if not norms.empty:
        yield "gradient-norms", "Norms of the gradient: quartiles, and 5 to 95 % of the samples", chart_norms(norms)


def tabulate_norms(rows: pd.DataFrame) -> pd.DataFrame:
    """Return quantiles of log10 of the gradient's L2 norm, one line per model and loss; zero gradients are left out."""
    found = rows[rows["l2"] > 0]
    shares = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
    logs = found.assign(log=np.log10(found["l2"])).groupby(KEYS, sort=False)["log"]
    return pd.DataFrame({name: logs.quantile(share) for name, share in shares.items()}).reset_index()


def chart_zeros(table: pd.DataFrame) -> TopLevelMixin:
    """Draw the share of entries that are exactly zero as bars."""
    import altair as alt

    from robustcaps.utils.chart_style import percent_axis

    share = alt.X("zeros:Q", scale=alt.Scale(domain=[0, 1]), axis=percent_axis("exactly zero"))
    tooltip = ["model:N", "loss:N", alt.Tooltip("zeros:Q", format=".1%"), alt.Tooltip("n:Q", title="samples")]
    bars = _lines(table[["data", "model", "loss", "n", "zeros"]]).mark_bar(size=9, cornerRadiusEnd=2)
    return _sized(bars.encode(share, tooltip=tooltip), table)


def chart_norms(norms: pd.DataFrame) -> TopLevelMixin:
    """Draw quantiles of the gradient's norm: a line from 5 to 95 %, a bar from 25 to 75 %, a point for the median."""
    import altair as alt

    scale, axis = alt.Scale(zero=False, nice=True), alt.Axis(title="log10 of the L2 norm", tickCount=6)
    tooltip = [
        "model:N",
        "loss:N",
        *(alt.Tooltip(f"{name}:Q", format=".2f") for name in ("q05", "q25", "q50", "q75", "q95")),
    ]
    lines = _lines(norms)
    layers = (
        lines.mark_rule(opacity=0.7).encode(alt.X("q05:Q", scale=scale, axis=axis), alt.X2("q95:Q"), tooltip=tooltip),
        lines.mark_bar(size=8, opacity=0.55).encode(alt.X("q25:Q", scale=scale), alt.X2("q75:Q"), tooltip=tooltip),
        lines.mark_point(filled=True, size=60, opacity=1).encode(alt.X("q50:Q", scale=scale), tooltip=tooltip),
    )
    return _sized(alt.layer(*layers), norms)


def _lines(table: pd.DataFrame) -> Any:
    """Return a chart with a line per model, and one per loss within it, of the chosen dataset."""
    import altair as alt

    from robustcaps.utils.chart_style import colour_scale, inline_data

    return (
        alt.Chart(inline_data(table))
        .transform_filter("datum.data == dataset")
        .encode(
            alt.Y("model:N", sort=None, title=None),
            alt.YOffset("loss:N", sort=None),
            alt.Color(
                "loss:N",
                scale=colour_scale(table["loss"]),
                legend=alt.Legend(orient="top", title="loss", symbolOpacity=1),
            ),
        )
    )


def _sized(chart: Any, table: pd.DataFrame) -> TopLevelMixin:
    """Return a chart with room for every loss, and its choice of dataset."""
    from robustcaps.utils.chart_style import choice

    height = 16 * table.groupby("data").size().max() + 20
    sized: TopLevelMixin = chart.properties(width="container", height=int(height)).add_params(
        choice("dataset", "Dataset", list(dict.fromkeys(table["data"])))
    )
    return sized


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
        charts=charts,
        passes=9.0,
    )
)
