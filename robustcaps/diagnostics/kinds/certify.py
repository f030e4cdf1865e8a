"""Certified accuracy of smoothed classifiers, and the security curve: attacks above, certificates below."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Tables, diagnostic_kind
from robustcaps.utils.grid import Grid, make_grid, number, percent
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

KEYS = ["suite", "data", "model", "diagnostic", "sigma"]
RADII = tuple(0.5 * k for k in range(9))
"""Radii of the table, in units of sigma; those that n copies cannot certify are left out."""
CURVE_POINTS = 200
"""Radii of a curve in a figure."""
PANELS_PER_ROW = 2
HIGHEST = 1.03
"""The top of axes of accuracies: markers at 1 are whole."""
NOTE = (
    "Share of samples that the smoothed classifier predicts correctly, and provably does within the l2 radius (Cohen "
    "et al. 2019). Abstentions count as wrong. Certificates are of the smoothed classifier, not of the model itself."
)


def tabulate_certified(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per (model, radius): certified accuracy and its interval.

    abstained is the share of samples without a prediction, mean_radius the mean over all samples of the certified
    radius, 0 where the prediction is wrong.
    """
    lines = []
    for names, part in rows.groupby(KEYS, sort=False):
        sigma, largest = float(part["sigma"].iloc[0]), float(part["max_radius"].iloc[0])
        shared = {
            **dict(zip(KEYS, names, strict=True)),
            "samples": len(part),
            "copies": int(part["n"].iloc[0]),
            "alpha": float(part["alpha"].iloc[0]),
            "abstained": float((part["prediction"] < 0).mean()),
            "mean_radius": float(part["radius"].where(part["correct"], 0.0).mean()),
        }
        radii = [sigma * each for each in RADII if sigma * each <= largest]
        shares = certified_accuracy(part, radii)
        lines += [{**shared, "radius": r, "certified": float(s)} for r, s in zip(radii, shares, strict=True)]
    table = pd.DataFrame(lines)
    low, high = wilson((table["certified"] * table["samples"]).round(), table["samples"])
    return table.assign(certified_low=low, certified_high=high)


def certified_accuracy(rows: pd.DataFrame, radii: Any) -> NDArray[np.float64]:
    """Return the share of samples that are certified with the correct class at each radius."""
    radius = rows["radius"].where(rows["correct"], -1.0).to_numpy()
    shares: NDArray[np.float64] = (radius[None, :] >= np.asarray(radii)[:, None]).mean(axis=1)
    return shares


def certified_grids(table: pd.DataFrame) -> list[Grid]:
    """Return a grid for each sigma: a line per model, a column per radius."""
    grids = []
    for sigma, part in table.groupby("sigma", sort=False):
        radii = list(part["radius"].unique())
        columns = ["data", "model", "samples", "copies", "abstained %", "mean radius"]
        columns += [f"certified % at {radius:g}" for radius in radii]
        lines = []
        for _, group in part.groupby(["data", "model", "diagnostic"], sort=False):
            first, by_radius = group.iloc[0].to_dict(), {line["radius"]: line for line in group.to_dict("records")}
            cells = [str(first[name]) for name in ("data", "model", "samples", "copies")]
            shares = [percent(by_radius.get(radius, {}), "certified") for radius in radii]
            lines.append([*cells, percent(first, "abstained"), number(first["mean_radius"], ".3f"), *shares])
        title = f"Certified accuracy in l2, noise with sigma {sigma:g}, alpha {part['alpha'].iloc[0]:g}"
        grids.append(make_grid(columns, lines, title=title, numeric=columns[2:]))
    return grids


def empirical_lines(tables: Tables) -> pd.DataFrame:
    """Return the lowest accuracy over untargeted attacks in l2 by (suite, data, model, eps), eps in pixel values."""
    table = tables.get("table", pd.DataFrame())
    if table.empty:
        return table
    chosen = table[(table["norm"] == "l2") & (table["unit"] == "pixel") & (table["goal"] == "untargeted")]
    lowest = chosen.groupby(["suite", "data", "model", "eps"], sort=False)["accuracy"].min().reset_index()
    lowest["accuracy"] = lowest.sort_values("eps").groupby(["suite", "data", "model"])["accuracy"].cummin()
    return lowest.sort_values("eps", kind="stable")


def draw_certified(rows: pd.DataFrame) -> Figure:
    """Draw certified accuracy against the radius: a panel per dataset and sigma, a line per model."""
    from robustcaps.utils.figure_layout import make_panels, set_title, set_xlabel, set_ylabel
    from robustcaps.utils.figure_style import current_style, model_colours, white_grid

    panels = list(rows.groupby(["data", "sigma"], sort=False))
    colours = model_colours(rows)
    with white_grid():
        figure, axes = make_panels([len(panels)], columns=PANELS_PER_ROW, width=5.4, height=3.8, narrowest=4.0)
        for axis, ((data, sigma), panel) in zip(axes, panels, strict=True):
            for model, part in panel.groupby("model", sort=False):
                radii = _radii(part)
                axis.plot(radii, certified_accuracy(part, radii), color=colours[model], label=str(model))
            set_title(axis, f"{data}: sigma {sigma:g} (n = {panel['index'].nunique()})")
            set_xlabel(axis, "l2 radius")
            set_ylabel(axis, "certified accuracy")
            axis.set_ylim(0, HIGHEST)
            axis.legend(frameon=False, fontsize=0.8 * current_style().font)
    return figure


def draw_security(rows: pd.DataFrame, empirical: pd.DataFrame) -> Figure:
    """Draw, for each model, accuracy under l2 attacks above and certified accuracy of its smoothed version below."""
    from matplotlib.lines import Line2D

    from robustcaps.utils.figure_layout import make_panels, set_caption, set_title, set_xlabel, set_ylabel
    from robustcaps.utils.figure_style import scaled, white_grid

    panels = list(rows.groupby(["suite", "data", "model", "sigma"], sort=False))
    with white_grid():
        attacked: Any = {"color": "#d55e00", "marker": "o", "markersize": scaled(6)}
        legend = [
            Line2D([], [], label="model itself, worst case of attacks", **attacked),
            Line2D([], [], color="C0", label="its smoothed version, certified"),
        ]
        figure, axes = make_panels([len(panels)], columns=PANELS_PER_ROW, width=4.4, height=3.4, legend=legend)
        for axis, ((suite, data, model, sigma), part) in zip(axes, panels, strict=True):
            lines = empirical[(empirical["suite"] == suite) & (empirical["data"] == data)]
            lines = lines[lines["model"] == model]
            axis.plot(lines["eps"], lines["accuracy"], **attacked)
            radii = _radii(part)
            certified = certified_accuracy(part, radii)
            axis.plot(radii, certified, color="C0")
            axis.fill_between(radii, certified, color="C0", alpha=0.1)
            set_title(axis, f"{model} ({data}, sigma {sigma:g})")
            set_xlabel(axis, "l2 eps")
            set_ylabel(axis, "accuracy")
            axis.set_ylim(0, HIGHEST)
        set_caption(figure, "Security curves: attacks are on the model itself, certificates of its smoothed version")
    return figure


def _radii(part: pd.DataFrame) -> NDArray[np.float64]:
    """Return radii up to the largest that the number of copies can certify."""
    return np.linspace(0.0, float(part["max_radius"].iloc[0]), CURVE_POINTS)


def draw(rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield certified accuracies, and security curves where a model was also attacked in l2."""
    yield "certified", draw_certified(rows)
    empirical = empirical_lines(tables)
    if not empirical.empty:
        attacked = rows.merge(empirical[["suite", "data", "model"]].drop_duplicates(), on=["suite", "data", "model"])
        if not attacked.empty:
            yield "security", draw_security(attacked, empirical)


CERTIFY = diagnostic_kind(
    DiagnosticKind(
        name="certify",
        measure="robustcaps.diagnostics.smoothing:certify",
        tables=(KindTable("certified", tabulate_certified, certified_grids),),
        title="Certified accuracy by randomised smoothing",
        note=NOTE,
        draw=draw,
        passes=1100.0,
    )
)
