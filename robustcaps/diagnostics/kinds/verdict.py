"""Verdicts: whether a robust accuracy can be trusted, from the checks for gradient masking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from robustcaps.diagnostics.kinds.base import (
    DiagnosticKind,
    KindTable,
    ModelRecords,
    Options,
    Statuses,
    Tables,
    diagnostic_kind,
)
from robustcaps.registry import DIAGNOSTICS, Registry
from robustcaps.utils.grid import Grid, GridCell, Section, Tone, format_p, make_grid, percent
from robustcaps.utils.statistics import mcnemar, wilson

if TYPE_CHECKING:
    from altair import TopLevelMixin
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

KEYS = ["suite", "data", "model", "diagnostic", "norm", "eps", "loss"]
CHECK_COLUMNS = ["check", "kind", "flagged", "proof", "value", "threshold", "words", "meaning", "source", "remedy"]
SHARES = ("clean", "naive", "corrected")
STATUS_COLOURS = {"trusted": "#0173b2", "suspicious": "#de8f05", "masked": "#a2244a"}
"""Distinct for colour-blind readers, also in lightness."""
TONES: dict[str, Tone] = {"trusted": "good", "suspicious": "warning", "masked": "bad"}
TITLE = "Can these numbers be trusted?"
NOTE = (
    "Naive: robust accuracy under the baseline attack alone. Corrected: per-sample worst case over all checks and "
    "remedies. Masked: proof that the gradients mislead. Confidence: the verdict's probability. !: a proof."
)


def tabulate_verdicts(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per verdict: its status, the accuracies with Wilson intervals, and the flagged checks."""
    rows = rows if "confidence" in rows else rows.assign(confidence=np.nan)
    table = rows.drop_duplicates(KEYS)[[*KEYS, "n", "status", "confidence", *SHARES, "summary"]].reset_index(drop=True)
    for share in SHARES:
        bounds = wilson((table[share].fillna(0) * table["n"]).round(), table["n"])
        for end, bound in zip(("low", "high"), bounds, strict=True):
            table[f"{share}_{end}"] = np.where(table[share].isna(), np.nan, bound)
    named = rows.assign(check=rows["check"] + np.where(rows["proof"], "!", ""))
    flags = named[named["flagged"]].groupby(KEYS, sort=False)["check"].agg(" ".join).rename("flagged").reset_index()
    table = table.merge(flags, on=KEYS, how="left").fillna({"flagged": ""})
    shares = [f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")]
    return table[[*KEYS, "n", "status", "confidence", *shares, "flagged", "summary"]]


def tabulate_checks(rows: pd.DataFrame, _models: ModelRecords = ()) -> pd.DataFrame:
    """Return one line per check of every verdict."""
    return rows[[*KEYS, "status", *CHECK_COLUMNS]]


def verdict_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the verdicts for readers."""
    shares = [f"{share} %" for share in SHARES]
    columns = ["data", "model", "diagnostic", "eps", "n", *shares, "verdict", "confidence", "flagged"]
    rows = [
        [
            *_names(line),
            str(line["n"]),
            *(percent(line, share) for share in SHARES),
            GridCell(line["status"], bold=line["status"] != "trusted", tone=TONES[line["status"]]),
            _confidence(line),
            "" if pd.isna(line["flagged"]) else line["flagged"].replace(" ", ", "),  # no name is NaN in a published CSV
        ]
        for line in table.to_dict("records")
    ]
    title = "Verdicts: robust accuracy in % (Wilson 95 %) under baseline PGD (naive) and under all attacks (corrected):"
    return [make_grid(columns, rows, title=title, numeric=["n", *shares, "confidence"])]


def _confidence(line: Mapping[Any, Any]) -> str:
    """Return the probability of a verdict; results from before it was measured have none."""
    value = line.get("confidence", np.nan)
    return "" if pd.isna(value) else f"{value:.2f}"


def check_grids(table: pd.DataFrame) -> list[Grid]:
    """Return every check of every verdict for readers, flagged ones in bold."""
    columns = ["data", "model", "diagnostic", "eps", "check", "observation"]
    rows = [
        [*_names(line), GridCell(line["check"], bold=bool(line["flagged"])), line["words"]]
        for line in table.to_dict("records")
    ]
    return [make_grid(columns, rows)]


def _flagged_grid(table: pd.DataFrame) -> Grid:
    """Return the flagged checks with what they mean and what to do."""
    columns = ["data", "model", "diagnostic", "eps", "check", "observation", "meaning", "remedy", "reference"]
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
    """Draw the robust accuracy of every model under baseline PGD and under all attacks: a panel per dataset and eps.

    Args:
        verdicts: One line per verdict (`results.verdicts`, or verdicts.csv).

    Example:
        rc.draw_verdicts(rc.load_results("results/trust").verdicts)
    """
    from robustcaps.utils.figure_layout import break_label, make_panels, name_panels, set_caption, set_title, set_xlabel
    from robustcaps.utils.figure_style import white_grid

    panels = list(verdicts.groupby(["data", "norm", "eps"], sort=False))
    several = len(set(verdicts["diagnostic"])) > 1
    labels = {key: break_label(", ".join(key) if several else key[0]) for key in _lines(verdicts)}
    tallest = max(sum(max(1, 0.7 * (labels[key].count("\n") + 1)) for key in _lines(panel)) for _, panel in panels)
    with white_grid():
        size: Any = {"width": 3.2 + 2.6 / len(panels), "height": 1.2 + 0.3 * tallest}
        figure, axes = make_panels(
            [len(panels)], columns=4, legend=_legend(verdicts), shrinks=False, narrowest=4.0, sharex=True, **size
        )
        titles, common = name_panels([(data, f"eps {eps:g} ({norm})") for (data, norm, eps), _ in panels])
        is_column = axes[-1].get_subplotspec().is_first_col()  # type: ignore[union-attr]
        for axis, (_, panel), title in zip(axes, panels, titles, strict=True):
            _draw_panel(axis, panel, {key: labels[key] for key in (_lines(panel) if is_column else labels)})
            set_title(axis, title)
            set_xlabel(axis, "robust accuracy")
            if not axis.get_subplotspec().is_first_col():  # type: ignore[union-attr]
                axis.set_yticklabels([])
        n = verdicts["n"].max()
        set_caption(
            figure, f"Robust accuracy under baseline PGD and under all attacks (n = {n}; bars: Wilson 95 %)", common
        )
    return figure


def _lines(verdicts: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(verdicts["model"].astype(str), verdicts["diagnostic"].astype(str), strict=True))


def _draw_panel(axis: Axes, panel: pd.DataFrame, labels: Mapping[tuple[str, str], str]) -> None:
    from robustcaps.utils.figure_style import scaled

    places = {key: place for place, key in enumerate(labels)}
    for line, key in zip(panel.to_dict("records"), _lines(panel), strict=True):
        place, colour = places[key], STATUS_COLOURS[line["status"]]
        if np.isnan(line["corrected"]):
            axis.text(0.0, place, "cannot be judged", va="center", color=colour)
            continue
        thick: Any = {"linewidth": scaled(4), "alpha": 0.3}
        axis.plot([line["naive"], line["corrected"]], [place, place], color=colour, linewidth=scaled(1.2), zorder=1)
        axis.plot([line["corrected_low"], line["corrected_high"]], [place, place], color=colour, **thick)
        axis.plot(line["naive"], place, "o", markerfacecolor="white", color=colour, markersize=scaled(6))
        axis.plot(line["corrected"], place, "o", color=colour, markersize=scaled(6))
    axis.set_yticks(range(len(labels)), list(labels.values()))
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_xlim(-0.03, 1.03)


def _legend(verdicts: pd.DataFrame) -> list[Line2D]:
    from matplotlib.lines import Line2D

    from robustcaps.utils.figure_style import scaled

    dot: dict[str, Any] = {"color": "0.3", "marker": "o", "linestyle": "none", "markersize": scaled(6)}
    handles = [
        Line2D([], [], **dot, markerfacecolor="white", label="naive (baseline PGD)"),
        Line2D([], [], **dot, label="corrected (all attacks)"),
    ]
    shown = {name: colour for name, colour in STATUS_COLOURS.items() if name in set(verdicts["status"])}
    return handles + [Line2D([], [], color=colour, linewidth=scaled(3), label=name) for name, colour in shown.items()]


def draw(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of the verdicts."""
    yield "verdicts", draw_verdicts(tables["verdicts"])


def statuses(tables: Tables, _models: ModelRecords) -> Statuses:
    """Return the verdicts on each model: one word where all agree, else each with the name of its diagnostic."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for line in tables["verdicts"].to_dict("records"):
        found.setdefault((line["data"], line["model"]), []).append((line["diagnostic"], line["status"]))
    return {
        key: lines[0][1]
        if len({status for _, status in lines}) == 1
        else ", ".join(f"{diagnostic}: {status}" for diagnostic, status in lines)
        for key, lines in found.items()
    }


def finding(tables: Tables) -> str:
    """Return how many robust accuracies are masked, and the one that stronger attacks lower most."""
    verdicts = tables["verdicts"]
    judged = verdicts if verdicts.empty else verdicts[verdicts["corrected"].notna()]
    if judged.empty:
        return ""
    counts = judged["status"].value_counts()
    masked = judged[judged["status"] == "masked"]
    line = max((masked if len(masked) else judged).to_dict("records"), key=_drop)
    p = float(mcnemar(0, round(line["n"] * _drop(line))))
    interval = f"95 % CI {100 * line['corrected_low']:.1f} to {100 * line['corrected_high']:.1f}"
    listed = ", ".join(f"{counts[status]} {status}" for status in TONES if status in counts)
    return (
        f"Gradient masking: {listed}. Stronger attacks lower the robust accuracy of {line['model']} "
        f"({line['diagnostic']}) most, at eps {line['eps']:g} ({line['norm']}) on {line['data']}: "
        f"{100 * line['naive']:.1f} % naive, {100 * line['corrected']:.1f} % corrected "
        f"({interval}; {format_p(p)}, McNemar; n = {line['n']})."
    )


def _drop(line: Mapping[Any, Any]) -> float:
    """Return how much stronger attacks lower a robust accuracy."""
    return float(line["naive"] - line["corrected"])


def charts(_rows: pd.DataFrame, tables: Tables) -> Iterator[tuple[str, str, TopLevelMixin]]:
    """Yield the chart of the verdicts."""
    yield (
        "verdicts",
        "Robust accuracy under the baseline attack (open), and after all checks (filled)",
        chart_verdicts(tables["verdicts"]),
    )


def chart_verdicts(verdicts: pd.DataFrame) -> TopLevelMixin:
    """Draw naive and corrected accuracy of every verdict, joined by a line in the colour of its status."""
    import altair as alt

    from robustcaps.utils.chart_style import INK, ROW_HEIGHT, STATUS_COLOURS, choice, inline_data, percent_axis

    settings = [f"{line['data']}, eps {line['eps']:g} ({line['norm']})" for line in verdicts.to_dict("records")]
    named = verdicts.assign(setting=settings, line=verdicts["model"] + ", " + verdicts["diagnostic"])
    columns = ["setting", "line", "n", "status", "naive", "corrected", "corrected_low", "corrected_high"]
    scale = alt.Scale(domain=list(STATUS_COLOURS), range=list(STATUS_COLOURS.values()))
    share: dict[str, Any] = {"scale": alt.Scale(domain=[0, 1]), "axis": percent_axis("robust accuracy")}
    shares = [alt.Tooltip(f"{name}:Q", format=".1%") for name in columns[4:]]
    lines = (
        alt.Chart(inline_data(named[columns].dropna(subset=["corrected"])))
        .transform_filter("datum.setting == setting")
        .encode(
            alt.Y("line:N", sort=None, axis=None),
            alt.Color("status:N", scale=scale, legend=alt.Legend(orient="top", title=None, symbolOpacity=1)),
            tooltip=["line:N", "status:N", *shares, alt.Tooltip("n:Q", title="samples")],
        )
    )
    layers = (
        lines.mark_rule(strokeWidth=6, opacity=0.25).encode(
            alt.X("corrected_low:Q", **share), alt.X2("corrected_high:Q")
        ),
        lines.mark_rule(strokeWidth=1.5).encode(alt.X("naive:Q", **share), alt.X2("corrected:Q")),
        lines.mark_point(size=80, strokeWidth=2).encode(alt.X("naive:Q", **share)),
        lines.mark_point(filled=True, size=90, opacity=1).encode(alt.X("corrected:Q", **share)),
        lines.mark_text(align="left", dy=-15).encode(x=alt.value(2), color=alt.value(INK), text="line:N"),
    )
    chart: TopLevelMixin = (
        alt.layer(*layers)
        .properties(width="container", height=ROW_HEIGHT * max(settings.count(setting) for setting in settings))
        .add_params(choice("setting", "Setting", list(dict.fromkeys(settings))))
    )
    return chart


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
        charts=charts,
        section=report_section,
        statuses=statuses,
        finding=finding,
        passes=1500.0,  # random searches try what gradients leave
        check_options=check_options,
        parts=parts,
    )
)
