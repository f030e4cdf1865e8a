"""Charts of the attacks of a run: each is a function of a DataFrame that returns an Altair chart.

What readers choose (dataset, attack, model, loss, lines) are parameters of the chart; the page makes controls for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from robustcaps.analysis.figures.cost import comparable
from robustcaps.analysis.rows import number_groups
from robustcaps.analysis.tables.summary import MEASURES
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.chart_style import choice, colour_scale, inline_data, percent_axis

ANY = "any"
"""The choice that leaves out nothing."""
LABEL_GAP = 0.06
"""Smallest distance of two labels at the ends of lines, as a share of the axis."""
HEIGHT = 320
WIDE = "containerSize()[0] > 480"
"""Whether there is room for labels at the ends of lines; on a telephone there is not."""
MAX_LABEL = 22
"""Longer names are cut off in labels; the tooltip has them whole."""


def threat_name(line: Mapping[Any, Any]) -> str:
    """Return a dataset and a threat model in few words: 'toys, linf'; the unit only if it is not pixels."""
    unit = "" if line["unit"] == "pixel" else f" ({line['unit']})"
    return f"{line['data']}, {line['norm']}{unit}"


def tabulate_curves(table: pd.DataFrame, goal: str, clean: pd.DataFrame, losses: Mapping[str, str]) -> pd.DataFrame:
    """Return a line per point of the curves of a goal: threat, model, attack, loss, eps, rate, low, high, n.

    Curves of accuracy begin with the clean accuracy at eps 0. Attacks at a single eps are no curves.
    """
    rate, _ = MEASURES[goal]
    part = table[table["goal"] == goal]
    part = part.assign(threat=[threat_name(line) for line in part.to_dict("records")])
    keys = ["data", "threat", "model", "attack"]
    attacked = part[part["eps"] > 0]
    swept = attacked[attacked.groupby(keys)["eps"].transform("nunique") > 1]
    if swept.empty:
        return pd.DataFrame()
    if goal == "untargeted":
        names = {f"clean{end}": f"{rate}{end}" for end in ("", "_low", "_high")}
        start = swept[[*keys, "n"]].drop_duplicates(keys).merge(clean.rename(columns=names), on=["data", "model"])
        start = start.assign(eps=0.0)
        swept = pd.concat([start, swept], ignore_index=True)
    names = {rate: "rate", f"{rate}_low": "low", f"{rate}_high": "high"}
    curves = swept.rename(columns=names).assign(loss=swept["attack"].map(losses).fillna("").to_numpy())
    columns = ["threat", "model", "attack", "loss", "eps", "rate", "low", "high", "n"]
    order = number_groups(curves, ["threat", "model", "attack"])
    return curves[columns].iloc[np.lexsort((curves["eps"], order))].reset_index(drop=True)


def chart_curves(curves: pd.DataFrame, *, line: str, fixed: str, measure: str) -> alt.TopLevelMixin:
    """Draw a rate against eps with a line per model under one attack (`fixed`), or per attack on one model."""
    names, others = (_names(curves[column]) for column in (line, fixed))
    threats, colours = list(dict.fromkeys(curves["threat"])), colour_scale(names, strong=WORST_CASE)
    labelled = curves.assign(label=_label_places(curves, fixed))
    longest = min(MAX_LABEL, max(map(len, names)))
    margin = 8 + 7 * longest
    points = (
        alt.Chart(inline_data(labelled))
        .transform_filter(f"datum.threat == threat && datum.{fixed} == chosen && indexof(shown, datum.{line}) >= 0")
        .transform_filter(f"loss == '{ANY}' || datum.loss == loss || datum.attack == {_quoted(WORST_CASE)}")
        .encode(
            alt.X(
                "eps:Q",
                title="eps, on a square-root scale",
                scale=alt.Scale(type="sqrt", range=[0, alt.expr(f"{WIDE} ? width - {margin} : width - 10")]),
                axis=alt.Axis(values=sorted(curves["eps"].unique().tolist()), grid=False, format="~g"),
            ),
            alt.Color(f"{line}:N", scale=colours, legend=None),
        )
    )
    nearest = alt.selection_point(
        name="nearest", nearest=True, on="pointerover", clear="pointerout", fields=["eps", line], empty=False
    )
    rate = alt.Y("rate:Q", scale=alt.Scale(domain=[0, 1]), axis=percent_axis(measure))
    details = [
        alt.Tooltip("model:N"),
        alt.Tooltip("attack:N"),
        alt.Tooltip("eps:Q"),
        alt.Tooltip("rate:Q", format=".1%", title=measure),
        alt.Tooltip("low:Q", format=".1%", title="95 % from"),
        alt.Tooltip("high:Q", format=".1%", title="to"),
        alt.Tooltip("n:Q", title="samples"),
    ]
    is_worst = f"'{line}' == 'attack' && datum.attack == {_quoted(WORST_CASE)}"
    layers = (
        points.mark_area(opacity=0.08).encode(alt.Y("low:Q"), alt.Y2("high:Q")),
        points.mark_line(interpolate="linear").encode(
            rate,
            strokeWidth=alt.condition(is_worst, alt.value(6), alt.value(2.2)),
            strokeOpacity=alt.condition(is_worst, alt.value(0.35), alt.value(1)),
        ),
        points.mark_point(filled=True, opacity=1)
        .encode(rate, size=alt.condition(nearest, alt.value(150), alt.value(36)), tooltip=details)
        .add_params(nearest),
        points.transform_filter("isValid(datum.label)")
        .mark_text(align="left", dx=9, fontWeight=600, limit=margin, text=alt.expr(f"{WIDE} ? datum.{line} : ''"))
        .encode(alt.Y("label:Q")),
    )
    first = WORST_CASE if WORST_CASE in others else others[0]
    losses = [ANY, *sorted({loss for loss in curves["loss"] if loss})]
    return (
        alt.layer(*layers)
        .add_params(
            choice("threat", "Dataset", threats),
            choice("chosen", fixed.capitalize(), others, first),
            choice("loss", "Loss", losses) if len(losses) > 2 else alt.param(name="loss", value=ANY),
            alt.param(name="shown", value=names),
        )
        .properties(width="container", height=HEIGHT, usermeta={"lines": {"shown": colours.to_dict()}})
    )


def _names(column: pd.Series[str]) -> list[str]:
    """Return the names in a column in order of appearance, the worst case last."""
    return sorted(dict.fromkeys(column), key=lambda name: name == WORST_CASE)


def _quoted(text: str) -> str:
    """Return a constant of ours as a string of Vega's expressions."""
    return f"'{text}'"


def _label_places(curves: pd.DataFrame, fixed: str) -> NDArray[np.float64]:
    """Return where the label of each line stands, on its last point; NaN on all others."""
    places = np.full(len(curves), np.nan)
    for rows in curves.groupby(["threat", fixed], sort=False).indices.values():
        part = curves.iloc[rows]
        last = rows[(part["eps"] == part["eps"].max()).to_numpy()]
        means = part.groupby(["model", "attack"])["rate"].transform("mean").loc[last]
        places[last] = spread(curves["rate"].to_numpy()[last], LABEL_GAP, ties=means)
    return places


def spread(values: ArrayLike, gap: float, *, ties: ArrayLike, top: float = 1.0) -> NDArray[np.float64]:
    """Return values in the same order, moved apart so that neighbours differ by `gap` or more.

    They are at most `top`, if that is possible. Of equal values, that with the larger tie-breaker comes out higher.
    """
    placed = np.asarray(values, dtype=float).copy()
    upwards = np.lexsort((np.asarray(ties), placed))
    for lower, upper in itertools.pairwise(upwards):
        placed[upper] = max(placed[upper], placed[lower] + gap)
    ceiling = max(top, gap * (len(placed) - 1))
    for place in upwards[::-1]:
        placed[place] = min(placed[place], ceiling)
        ceiling = placed[place] - gap
    return placed


def tabulate_cost(table: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy at a common eps and the passes of the whole sweep: a line per threat, model and attack."""
    attacked = comparable(table)
    attacked = attacked.assign(threat=[threat_name(line) for line in attacked.to_dict("records")])
    lines = []
    for threat, panel in attacked.groupby("threat", sort=False):
        eps = separating_eps(panel)
        for (model, attack), sweep in panel.groupby(["model", "attack"], sort=False):
            cost = float((sweep["forwards"] + sweep["backwards"]).sum())
            for line in sweep[sweep["eps"] == eps].to_dict("records"):
                rates = {"rate": line["accuracy"], "low": line["accuracy_low"], "high": line["accuracy_high"]}
                names = {"threat": threat, "model": model, "attack": attack, "eps": eps}
                lines.append({**names, **rates, "passes": cost, "queries": float(sweep["queries"].sum())})
    return pd.DataFrame(lines)


def separating_eps(lines: pd.DataFrame) -> float:
    """Return the eps where the mean accuracy is nearest to one half, among those that most attacks were run with."""
    by_eps = lines.groupby("eps").agg(attacks=("attack", "nunique"), accuracy=("accuracy", "mean"))
    shared = by_eps[by_eps["attacks"] == by_eps["attacks"].max()]
    return float((shared["accuracy"] - 0.5).abs().idxmin())


def chart_cost(costs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw accuracy against the passes of an attack: lower and further left is the better attack."""
    threats, colours = list(dict.fromkeys(costs["threat"])), colour_scale(costs["model"])
    points = (
        alt.Chart(inline_data(costs))
        .transform_filter("datum.threat == threat && indexof(shown, datum.model) >= 0")
        .encode(
            alt.X(
                "passes:Q",
                scale=alt.Scale(type="log", nice=True),
                title="passes per sample, whole sweep",
                axis=alt.Axis(grid=False, format="~s", tickCount=5),
            ),
            alt.Color("model:N", scale=colours, legend=None),
        )
    )
    details: Sequence[Any] = [
        *("model:N", "attack:N", "eps:Q"),
        alt.Tooltip("rate:Q", format=".1%", title="accuracy"),
        alt.Tooltip("passes:Q", format=",.1f"),
        alt.Tooltip("queries:Q", format=",.1f"),
    ]
    rate = alt.Y("rate:Q", scale=alt.Scale(domain=[0, 1]), axis=percent_axis("accuracy under attack"))
    layers = (
        points.mark_rule(opacity=0.5).encode(alt.Y("low:Q", title=""), alt.Y2("high:Q")),
        points.mark_point(filled=True, size=110, opacity=0.9).encode(
            rate,
            alt.Shape("attack:N", legend=alt.Legend(orient="top", columns=alt.expr(f"{WIDE} ? 4 : 2"))),
            tooltip=details,
        ),
    )
    return (
        alt.layer(*layers)
        .add_params(choice("threat", "Dataset", threats), alt.param(name="shown", value=colours.domain))
        .properties(width="container", height=HEIGHT, usermeta={"lines": {"shown": colours.to_dict()}})
    )
