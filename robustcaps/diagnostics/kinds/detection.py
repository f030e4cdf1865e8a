"""Detection: how often attacks fool the classifier, are flagged by its detector, and get past both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Options, Tables, diagnostic_kind
from robustcaps.registry import ATTACKS, Registry
from robustcaps.utils.grid import Grid, make_grid, percent
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

CLEAN = "clean"
"""The attack that leaves images as they are: what is flagged of its rows are false alarms."""
RATES = ("fooled", "flagged", "undetected")
"""Shares of all samples; `detected` is a share of the fooled ones."""
ENDS = ("", "_low", "_high")
KEYS = ["suite", "data", "model", "diagnostic"]
BUDGET_KEYS = ["diagnostic", "suite", "data", "model", "attack", "goal", "norm", "unit", "eps"]
SHARES = ("success", "detected", "undetected", "false_alarms")
LINE_STYLES: dict[str, Any] = {"success": "-", "undetected": "--"}


def detection_rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the shares fooled, flagged and undetected with Wilson intervals, one line per model, attack and budget.

    detected is the share flagged of what is fooled, NaN where nothing is. A sample's rows (several targets or seeds)
    are averaged first and count once. With the attack 'clean', flagged are the false alarms.
    """
    keys = [name for name in BUDGET_KEYS if name in rows]
    table = rows.groupby(keys, sort=False).agg(n=("index", "nunique"), **{rate: (rate, "mean") for rate in RATES})
    for rate in RATES:
        table[f"{rate}_low"], table[f"{rate}_high"] = wilson(table[rate] * table["n"], table["n"])
    table["detected"] = 1 - table["undetected"] / table["fooled"].where(table["fooled"] > 0)
    fooled = table["fooled"] * table["n"]
    for end, bound in zip(ENDS[1:], wilson(table["detected"].fillna(0) * fooled, fooled), strict=True):
        table[f"detected{end}"] = np.where(table["detected"].isna(), np.nan, bound)
    return table[["n", *(f"{rate}{end}" for rate in (*RATES, "detected") for end in ENDS)]].reset_index()


def tabulate_detection(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per (model, attack, eps).

    success: share fooled; detected: share flagged of these; undetected: share fooled and not flagged; false_alarms:
    share of the same images flagged without an attack.
    """
    rates = detection_rates(rows)
    alarms = {f"flagged{end}": f"false_alarms{end}" for end in ENDS}
    clean = rates[rates["attack"] == CLEAN].rename(columns=alarms)[[*KEYS, *alarms.values()]]
    names = {f"fooled{end}": f"success{end}" for end in ENDS}
    table = rates[rates["attack"] != CLEAN].rename(columns=names).merge(clean, on=KEYS, how="left")
    return table[[*KEYS, "attack", "norm", "eps", "n", *(f"{rate}{end}" for rate in SHARES for end in ENDS)]]


def detection_grids(table: pd.DataFrame) -> list[Grid]:
    """Return detection for readers."""
    columns = ["data", "model", "attack", "eps", "n", *(f"{share.replace('_', ' ')} %" for share in SHARES)]
    rows = [
        [
            *(str(line[name]) for name in ("data", "model", "attack")),
            f"{line['eps']:g} {line['norm']}",
            str(line["n"]),
            *(percent(line, share) for share in SHARES),
        ]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows, numeric=columns[4:])]


def draw_detection(table: pd.DataFrame) -> Figure:
    """Draw success and undetected success against eps, a colour per attack, a panel per dataset and model.

    Args:
        table: Detection by model, attack and eps (`results.tables["detection"]`, or detection.csv).

    Example:
        rc.draw_detection(pd.read_csv("results/detect/detection.csv"))
    """
    from robustcaps.utils.figure_layout import make_panels, name_panels, set_caption, set_title, set_xlabel, set_ylabel
    from robustcaps.utils.figure_style import colours_of, white_grid

    panels = list(table.groupby(["data", "model", "diagnostic", "norm"], sort=False))
    colours = colours_of(table["attack"].unique())
    several = len(set(table["diagnostic"])) > 1
    with white_grid():
        legend = _legend(colours)
        figure, axes = make_panels([len(panels)], columns=4, width=3.8, height=4.0, legend=legend, sharey=True)
        titles, common = name_panels(
            [(data, model, diagnostic) if several else (data, model) for (data, model, diagnostic, _), _ in panels]
        )
        for axis, ((_, _, _, norm), panel), title in zip(axes, panels, titles, strict=True):
            _draw_panel(axis, panel, colours)
            set_title(axis, title)
            set_xlabel(axis, f"eps ({norm})")
            axis.set_ylim(-0.02, 1.02)
        set_ylabel(axes[0], "share of the images")
        set_caption(
            figure, f"Past the classifier, and past its detector (n = {table['n'].max()}; bars: Wilson 95 %)", common
        )
    return figure


def _draw_panel(axis: Axes, panel: pd.DataFrame, colours: dict[Any, Any]) -> None:
    from robustcaps.utils.figure_style import scaled

    sizes: Any = {"markersize": scaled(4), "capsize": scaled(2)}
    for attack, part in panel.groupby("attack", sort=False):
        ordered = part.sort_values("eps")
        for share, dash in LINE_STYLES.items():
            value = ordered[share]
            ends = [value - ordered[f"{share}_low"], ordered[f"{share}_high"] - value]
            style: Any = {"color": colours[attack], "linestyle": dash, "marker": "o"}
            axis.errorbar(ordered["eps"], value, yerr=ends, **style, **sizes)
    axis.axhline(panel["false_alarms"].iloc[0], color="0.4", linestyle=":", linewidth=scaled(1.2))


def _legend(colours: dict[Any, Any]) -> list[Line2D]:
    from matplotlib.lines import Line2D

    from robustcaps.utils.figure_style import scaled

    names = {"success": "fooled", "undetected": "fooled and not flagged"}
    handles = [Line2D([], [], color=colour, linewidth=scaled(3), label=attack) for attack, colour in colours.items()]
    handles += [Line2D([], [], color="0.2", linestyle=dash, label=names[share]) for share, dash in LINE_STYLES.items()]
    return [*handles, Line2D([], [], color="0.4", linestyle=":", label="clean images flagged")]


def draw(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of detection."""
    yield "detection", draw_detection(tables["detection"])


def check_options(options: Options) -> None:
    """Build every attack that is named, so that a wrong name or option is found before the run."""
    from robustcaps.diagnostics.detection import load_attacks

    load_attacks(options["attacks"])


def parts(options: Options) -> list[tuple[Registry[Any], str]]:
    """Return the attacks that are run."""
    return [(ATTACKS, attack if isinstance(attack, str) else attack["use"]) for attack in options["attacks"]]


DETECTION = diagnostic_kind(
    DiagnosticKind(
        name="detection",
        measure="robustcaps.diagnostics.detection:detection_rows",
        tables=(KindTable("detection", tabulate_detection, detection_grids),),
        title="Past the detector",
        note=(
            "An image is flagged if its reconstruction error exceeds that of nearly all clean validation images "
            "(Frosst et al. 2018). Success: share fooled, images misclassified from the start included. Detected: "
            "share flagged of the fooled. False alarms: share of the same images flagged without an attack."
        ),
        draw=draw,
        passes=100.0,
        check_options=check_options,
        parts=parts,
    )
)
