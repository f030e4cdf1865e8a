"""Novel viewpoints: errors on familiar and on novel views, beside the published ones (Hinton et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Tables, diagnostic_kind
from robustcaps.utils.grid import Grid, make_grid, number, percent
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = ["suite", "data", "model", "diagnostic", "by"]
VIEWS = ("familiar", "novel")
MEASURED = "measured"
PUBLISHED_SOURCE = "Hinton et al. 2018, table 2"
PUBLISHED = {
    "azimuths": {"CNN": (0.037, 0.200), "matrix capsules": (0.037, 0.135)},
    "elevations": {"CNN": (0.043, 0.178), "matrix capsules": (0.043, 0.123)},
}
"""Test errors on smallNORB (familiar, novel), of networks stopped at equal errors on familiar views."""
COLOURS = {"familiar": "#9ecae1", "novel": "#08519c"}
PANELS_PER_ROW = 2
BAR_HEIGHT = 0.38
"""Of one bar; the next model's bars begin at 1."""


def tabulate_views(rows: pd.DataFrame, models: ModelRecords) -> pd.DataFrame:
    """Return a line per model: its errors on familiar and on novel views; after those of an angle the published ones.

    `models` are the model records of run.json: trained_on are the views of the training (a fair test has the familiar
    ones there), wanted and reached its `stop_error` and the error on held-out familiar samples it ended with.
    """
    lines = [
        {**dict(zip(KEYS, names, strict=True)), "source": MEASURED, **_errors(part)}
        for names, part in rows.groupby(KEYS, sort=False)
    ]
    table = pd.DataFrame(lines).merge(_trainings(models), on=["data", "model"], how="left")
    angles = list(table["by"].unique())
    whole = pd.concat([table, _published(table)], ignore_index=True)
    return whole.sort_values("by", key=lambda by: by.map(angles.index), kind="stable", ignore_index=True)


def _errors(part: pd.DataFrame) -> dict[str, float]:
    """Return n, error and its interval, of familiar and of novel views."""
    errors: dict[str, float] = {}
    for name, seen in zip(VIEWS, (part[part["familiar"]], part[~part["familiar"]]), strict=True):
        wrong, n = int((~seen["right"]).sum()), len(seen)
        low, high = wilson(wrong, n)
        share = wrong / n if n else np.nan
        errors |= {f"n_{name}": n, name: share, f"{name}_low": float(low), f"{name}_high": float(high)}
    return errors


def _trainings(models: ModelRecords) -> pd.DataFrame:
    """Return what the model records say about the views and the error of the training."""
    lines = [
        {
            "data": model["data"],
            "model": model["label"],
            "trained_on": model.get("data_options", {}).get("views", "all"),
            "wanted": model.get("stop_error"),
            "reached": np.nan if model.get("validation_accuracy") is None else 1 - model["validation_accuracy"],
        }
        for model in models
    ]
    columns = ["data", "model", "trained_on", "wanted", "reached"]
    return pd.DataFrame(lines, columns=columns).astype({"wanted": float, "reached": float})


def _published(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of the paper for the angles of a table; they have no intervals."""
    lines = []
    for suite, by in table[["suite", "by"]].drop_duplicates().itertuples(index=False):
        for model, errors in PUBLISHED[by].items():
            names = {"suite": suite, "data": "smallNORB", "model": model, "diagnostic": "", "by": by}
            pair = dict(zip(VIEWS, errors, strict=True))
            lines.append({**names, "source": PUBLISHED_SOURCE, **pair, "trained_on": f"familiar-{by}"})
    return pd.DataFrame(lines)


def view_grids(table: pd.DataFrame) -> list[Grid]:
    """Return errors on familiar and novel views for readers."""
    columns = ["views by", "data", "model", "trained on", "held-out error % (wanted)"]
    columns += ["error on familiar views %", "error on novel views %", "n familiar", "n novel"]
    rows = [
        [
            *(str(line[name]) for name in ("by", "data", "model")),
            "" if pd.isna(line["trained_on"]) else line["trained_on"],
            _stop(line),
            *(percent(line, name) for name in VIEWS),
            *(number(line[f"n_{name}"], ".0f") for name in VIEWS),
        ]
        for line in table.to_dict("records")
    ]
    note = f"Lines of smallNORB: published, {PUBLISHED_SOURCE}, another dataset."
    return [make_grid(columns, rows, note=note, numeric=columns[4:])]


def _stop(line: Mapping[Any, Any]) -> str:
    """Return the held-out error at the end of a training, and the one it was to stop at."""
    reached, wanted = line["reached"], line["wanted"]
    return "" if pd.isna(reached) else f"{100 * reached:.1f}" + ("" if pd.isna(wanted) else f" ({100 * wanted:g})")


def draw_views(table: pd.DataFrame) -> Figure:
    """Draw the errors on familiar and on novel views: two bars per model, a panel per dataset and angle.

    Args:
        table: One line per model and angle (`results.tables["views"]`, or views.csv).

    Example:
        rc.draw_views(pd.read_csv("results/viewpoints/views.csv"))
    """
    from matplotlib.patches import Patch

    from robustcaps.utils.figure_layout import make_panels, set_caption, set_title, set_xlabel
    from robustcaps.utils.figure_style import white_grid

    ours = table[table["source"] == MEASURED]
    panels = [
        (data, by, pd.concat([part, table[(table["source"] != MEASURED) & (table["by"] == by)]]))
        for (data, by), part in ours.groupby(["data", "by"], sort=False)
    ]
    tallest = max(len(panel) for _, _, panel in panels)
    with white_grid():
        legend = [Patch(color=colour, label=f"{name} views") for name, colour in COLOURS.items()]
        legend.append(Patch(facecolor="white", edgecolor="0.4", hatch="///", label="published (smallNORB)"))
        size: Any = {"width": 5.0, "height": 1.2 + 0.45 * tallest}
        figure, axes = make_panels(
            [len(panels)], columns=PANELS_PER_ROW, legend=legend, shrinks=False, narrowest=4.0, sharex=True, **size
        )
        for axis, (data, by, panel) in zip(axes, panels, strict=True):
            _draw_panel(axis, panel)
            set_title(axis, f"novel {by} ({data})")
            set_xlabel(axis, "test error (%)")
        set_caption(figure, "Errors on familiar and on novel viewpoints (whiskers: Wilson 95 %)")
    return figure


def _draw_panel(axis: Axes, panel: pd.DataFrame) -> None:
    from robustcaps.utils.figure_style import scaled

    published = (panel["source"] != MEASURED).to_numpy()
    for shift, (name, colour) in zip((-BAR_HEIGHT / 2, BAR_HEIGHT / 2), COLOURS.items(), strict=True):
        errors = 100 * panel[name]
        ends = np.stack([errors - 100 * panel[f"{name}_low"], 100 * panel[f"{name}_high"] - errors])
        places = np.arange(len(panel)) + shift
        bars = axis.barh(places, errors, BAR_HEIGHT, xerr=ends, color=colour, ecolor="0.2", capsize=scaled(2))
        for bar, hatched in zip(bars, published, strict=True):
            if hatched:
                bar.set(hatch="///", edgecolor="white")
    labels = [
        f"{model}, {data}" if from_paper else model
        for model, data, from_paper in zip(panel["model"], panel["data"], published, strict=True)
    ]
    axis.set_yticks(range(len(panel)), labels)
    axis.set_ylim(len(panel) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")


def draw(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of the viewpoints."""
    yield "views", draw_views(tables["views"])


VIEWPOINTS = diagnostic_kind(
    DiagnosticKind(
        name="views",
        measure="robustcaps.diagnostics.viewpoints:view_rows",
        tables=(KindTable("views", tabulate_views, view_grids),),
        title="Novel viewpoints",
        note=(
            "Test errors in percent on views like those of the training and on others. Held-out error: on familiar "
            "views of held-out samples at the end of the training; in brackets the error to stop at."
        ),
        draw=draw,
    )
)
