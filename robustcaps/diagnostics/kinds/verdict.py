"""Verdicts: whether a robust accuracy can be trusted, from the checks for gradient masking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import DiagnosticKind, KindTable, ModelRecords, Options, Tables, diagnostic_kind
from robustcaps.registry import DIAGNOSTICS, Registry
from robustcaps.utils.grid import Grid, GridCell, Section, Tone, make_grid, percent
from robustcaps.utils.statistics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

KEYS = ["suite", "data", "model", "diagnostic", "norm", "eps", "loss"]
CHECK_COLUMNS = ["check", "kind", "flagged", "proof", "value", "threshold", "words", "meaning", "source", "remedy"]
SHARES = ("clean", "naive", "corrected")
STATUS_COLOURS = {"trusted": "#1b7837", "suspicious": "#b8860b", "masked": "#b2182b"}
TONES: dict[str, Tone] = {"trusted": "good", "suspicious": "warning", "masked": "bad"}
TITLE = "Can these numbers be trusted?"
NOTE = (
    "Naive: robust accuracy under the baseline attack alone. Corrected: per-sample worst case over all checks and "
    "remedies. Masked: proof that the gradients mislead. !: the check is a proof."
)


def tabulate_verdicts(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per verdict: its status, the accuracies with Wilson intervals, and the flagged checks."""
    table = rows.drop_duplicates(KEYS)[[*KEYS, "n", "status", *SHARES, "summary"]].reset_index(drop=True)
    for share in SHARES:
        bounds = wilson((table[share].fillna(0) * table["n"]).round(), table["n"])
        for end, bound in zip(("low", "high"), bounds, strict=True):
            table[f"{share}_{end}"] = np.where(table[share].isna(), np.nan, bound)
    named = rows.assign(check=rows["check"] + np.where(rows["proof"], "!", ""))
    flags = named[named["flagged"]].groupby(KEYS, sort=False)["check"].agg(" ".join).rename("flagged").reset_index()
    table = table.merge(flags, on=KEYS, how="left").fillna({"flagged": ""})
    shares = [f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")]
    return table[[*KEYS, "n", "status", *shares, "flagged", "summary"]]


def tabulate_checks(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per check of every verdict."""
    return rows[[*KEYS, "status", *CHECK_COLUMNS]]


def verdict_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the verdicts for readers."""
    columns = ["data", "model", "attacked", "eps", "n", "clean %", "naive %", "corrected %", "verdict", "flagged"]
    rows = [
        [
            *_names(line),
            str(line["n"]),
            *(percent(line, share) for share in SHARES),
            GridCell(line["status"], bold=line["status"] != "trusted", tone=TONES[line["status"]]),
            "" if pd.isna(line["flagged"]) else line["flagged"].replace(" ", ", "),  # no name is NaN in a published CSV
        ]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows, title=f"{TITLE} Robust accuracy in % (Wilson 95 %):", numeric=columns[4:8])]


def check_grids(table: pd.DataFrame) -> list[Grid]:
    """Return every check of every verdict for readers, flagged ones in bold."""
    columns = ["data", "model", "attacked", "eps", "check", "observation"]
    rows = [
        [*_names(line), GridCell(line["check"], bold=bool(line["flagged"])), line["words"]]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows)]


def _flagged_grid(table: pd.DataFrame) -> Grid:
    """Return the flagged checks with what they mean and what to do."""
    columns = ["data", "model", "attacked", "eps", "check", "observation", "meaning", "remedy", "reference"]
    flagged = table[table["flagged"]]
    rows = [
        [
            *_names(line),
            f"{line['check']} (proof)" if line["proof"] else line["check"],
            *(line[name] for name in ("words", "meaning", "remedy", "source")),
        ]
        for line in flagged.to_dict("records")
    ]
    return make_grid(columns, rows, title=f"Flagged checks, what they mean and what to do ({len(rows)})")


def _names(line: Mapping[Any, Any]) -> list[str]:
    return [*(str(line[name]) for name in ("data", "model", "diagnostic")), f"{line['eps']:g} {line['norm']}"]


def report_section(_rows: pd.DataFrame, tables: Tables) -> Section:
    """Return the verdicts, a sentence for each, and the flagged checks folded away."""
    verdicts = tables["verdicts"]
    sentences = [
        f"{line['model']}, {line['diagnostic']}, {line['data']}: {line['summary']}"
        for line in verdicts.to_dict("records")
    ]
    flagged = _flagged_grid(tables["checks"])
    return Section(TITLE, NOTE, verdict_grids(verdicts), sentences, [flagged] if flagged.rows else [])


def draw_verdicts(verdicts: pd.DataFrame) -> Figure:
    """Draw the robust accuracy of every model before and after the remedies: a panel per dataset and eps."""
    from matplotlib.figure import Figure

    from robustcaps.utils.figure_style import white_grid

    panels = list(verdicts.groupby(["data", "norm", "eps"], sort=False))
    tallest = max(len(panel) for _, panel in panels)
    with white_grid():
        size = (3.2 * len(panels) + 5.4, 1.6 + 0.3 * tallest)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
        lines: list[tuple[str, str]] = list(dict.fromkeys(_lines(verdicts)))
        for axis, ((data, norm, eps), panel) in zip(axes, panels, strict=True):
            _draw_panel(axis, panel, lines)
            axis.set_title(f"{data}, eps {eps:g} ({norm})")
            axis.set_xlabel("robust accuracy")
        for axis in axes[1:]:
            axis.set_yticklabels([])
        figure.suptitle(f"Robust accuracy before and after the remedies (n = {verdicts['n'].max()}; bars: Wilson 95 %)")
        figure.legend(handles=_legend(), loc="outside right center", frameon=False)
    return figure


def _lines(verdicts: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(verdicts["model"].astype(str), verdicts["diagnostic"].astype(str), strict=True))


def _draw_panel(axis: Axes, panel: pd.DataFrame, lines: list[tuple[str, str]]) -> None:
    several = len({diagnostic for _, diagnostic in lines}) > 1
    for line, key in zip(panel.to_dict("records"), _lines(panel), strict=True):
        place, colour = lines.index(key), STATUS_COLOURS[line["status"]]
        if np.isnan(line["corrected"]):
            axis.text(0.0, place, "cannot be judged", va="center", color=colour)
            continue
        axis.plot([line["naive"], line["corrected"]], [place, place], color=colour, linewidth=1.2, zorder=1)
        axis.plot([line["corrected_low"], line["corrected_high"]], [place, place], color=colour, linewidth=4, alpha=0.3)
        axis.plot(line["naive"], place, "o", markerfacecolor="white", color=colour, markersize=6)
        axis.plot(line["corrected"], place, "o", color=colour, markersize=6)
    labels = [f"{model}, {diagnostic}" if several else model for model, diagnostic in lines]
    axis.set_yticks(range(len(lines)), labels)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    axis.set_xlim(-0.03, 1.03)


def _legend() -> list[Line2D]:
    from matplotlib.lines import Line2D

    dot: dict[str, Any] = {"color": "0.3", "marker": "o", "linestyle": "none"}
    handles = [
        Line2D([], [], **dot, markerfacecolor="white", label="naive (baseline PGD)"),
        Line2D([], [], **dot, label="after the remedies"),
    ]
    return handles + [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in STATUS_COLOURS.items()]


def draw(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of the verdicts."""
    yield "verdicts", draw_verdicts(tables["verdicts"])


def check_options(options: Options) -> None:
    """Build every check that is named, so that a wrong name or option is found before the run."""
    from robustcaps.diagnostics.verdict import load_diagnostic

    for check in options["checks"] or ():
        load_diagnostic(check)


def parts(options: Options) -> list[tuple[Registry[Any], str]]:
    """Return the checks that a verdict runs."""
    chosen = options["checks"] or DIAGNOSTICS.names()
    return [(DIAGNOSTICS, check if isinstance(check, str) else check["use"]) for check in chosen]


VERDICT = diagnostic_kind(
    DiagnosticKind(
        name="verdict",
        measure="robustcaps.diagnostics.verdict:measure_verdict",
        tables=(
            KindTable("verdicts", tabulate_verdicts, verdict_grids),
            KindTable("checks", tabulate_checks, check_grids),
        ),
        title=TITLE,
        draw=draw,
        section=report_section,
        passes=1500.0,  # random searches try what gradients leave
        check_options=check_options,
        parts=parts,
    )
)
