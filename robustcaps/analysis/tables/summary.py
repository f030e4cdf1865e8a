"""Rows summed up: accuracy and attack success with their intervals, sample counts and cost."""

from __future__ import annotations

import numpy as np
import pandas as pd

from robustcaps.utils.markdown import markdown_table
from robustcaps.utils.statistics import wilson

RUN = ["suite", "data", "model", "attack", "goal", "norm", "unit"]
"""What names a sweep: one attack on one model."""
KEYS = [*RUN, "eps"]
RATES = ("accuracy", "success")
COSTS = ("forwards", "backwards", "queries")
MEASURES = {
    "untargeted": ("accuracy", "Accuracy under attack"),
    "targeted": ("success", "Success of targeted attacks"),
}
"""What is told of attacks with either goal: a rate, and what it is called."""
WORST_CASE = "worst case of all"
"""What the per-sample worst case over all attacks of a table is called."""


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per (data, model, attack, goal, budget), in the order in which they came.

    accuracy: share predicted as labelled under the attack; success: share where the attack reached its goal.
    A sample's rows (several targets or seeds) are averaged first and count once, so n is the number of samples and
    Wilson's interval does not pretend to more. forwards, backwards and queries are means per sample; invalid counts
    rows.
    """
    if rows.empty:
        raise ValueError("there are no rows to sum up.")
    marked = rows.assign(accuracy=rows["adv_pred"] == rows["label"], success=rows["fooled"], invalid=~rows["valid"])
    table = (
        marked.groupby(KEYS, sort=False)
        .agg(
            n=("index", "nunique"),
            accuracy=("accuracy", "mean"),
            success=("success", "mean"),
            invalid=("invalid", "sum"),
            **{cost: (cost, "sum") for cost in COSTS},
        )
        .reset_index()
    )
    for cost in COSTS:
        table[cost] = table[cost] / table["n"]
    for rate in RATES:
        table[f"{rate}_low"], table[f"{rate}_high"] = wilson(table[rate] * table["n"], table["n"])
    intervals = [f"{rate}{end}" for rate in RATES for end in ("", "_low", "_high")]
    return table[[*KEYS, "n", *intervals, "invalid", *COSTS]]


def with_worst_case(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, and after those of each model its worst case where it has several attacks: the headline."""
    parts = []
    for _, part in rows.groupby(["suite", "data", "model"], sort=False):
        parts.append(part)
        for _, group in part[part["eps"] > 0].groupby(["goal", "norm", "unit"], sort=False):
            if len(set(group["attack"])) > 1:
                parts.append(_worst_case(group))
    return pd.concat(parts, ignore_index=True) if parts else rows


def _worst_case(group: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (sample, target, eps): fooled, or mistaken, if any attack did that at this eps or less."""
    sample = ["index", "target"]
    marked = group.assign(mistaken=group["adv_pred"] != group["label"]).sort_values("eps", kind="stable")
    worst = _so_far(marked, "fooled").merge(_so_far(marked, "mistaken"), on=[*sample, "eps"])
    first = marked.sort_values(["fooled", "mistaken"], ascending=False, kind="stable").drop_duplicates(sample)
    worst = worst.merge(first.drop(columns=["eps", "fooled", "mistaken"]), on=sample)
    worst["adv_pred"] = worst["adv_pred"].where(worst["mistaken"], worst["label"])
    spent = worst[sample].merge(group.groupby(sample)[list(COSTS)].sum().reset_index(), on=sample, how="left")
    smallest = worst["eps"] == worst["eps"].min()
    for cost in COSTS:
        worst[cost] = np.where(smallest, spent[cost], 0.0)
    return worst.assign(attack=WORST_CASE, valid=True, violation="", surrogate="", seed=0)[list(group.columns)]


def _so_far(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return, for every (sample, target, eps), whether a column was true at that eps or a smaller one."""
    found = rows.pivot_table(index=["index", "target"], columns="eps", values=column, aggfunc="max").astype(float)
    return (
        (found.cummax(axis=1).ffill(axis=1).fillna(0.0) > 0).melt(ignore_index=False, value_name=column).reset_index()
    )


def markdown(table: pd.DataFrame, goal: str) -> str:
    """Return the lines of a goal as a Markdown table: a row per model and attack, a column per eps."""
    rate, _ = MEASURES[goal]
    part = table[table["goal"] == goal]
    low, high = (part[f"{rate}{end}"] for end in ("_low", "_high"))
    percents = zip(part[rate] * 100, low * 100, high * 100, strict=True)
    text = [f"{value:.1f} ({below:.0f}-{above:.0f})" for value, below, above in percents]
    names = ["data", "model", "attack", *(name for name in ("norm", "unit") if len(part[name].unique()) > 1)]
    grid = part.assign(text=text).pivot_table(index=names, columns="eps", values="text", aggfunc="first", sort=False)
    lines = [[*map(str, index), *line] for index, line in zip(grid.index, grid.fillna("").to_numpy(), strict=True)]
    head = [*names, *(f"{eps:g}" for eps in grid.columns)]
    return markdown_table(head, lines, numbers=len(grid.columns))


def table_markdown(table: pd.DataFrame) -> str:
    """Return the whole table as Markdown: for each dataset and kind of eps accuracy, then targeted success."""
    pages = []
    for (data, norm, unit), part in table.groupby(["data", "norm", "unit"], sort=False):
        for goal in (goal for goal in MEASURES if goal in set(part["goal"])):
            title = f"{data}: {MEASURES[goal][1].lower()} in % (Wilson 95 %), by eps ({norm}, {unit}):"
            pages.append(f"{title}\n\n{markdown(part, goal)}")
    return "\n".join(pages)


def violations(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often each attack broke which rule on which model: one line per (model, attack, violation)."""
    if rows.empty:
        return pd.DataFrame(columns=["model", "attack", "violation", "rows"])
    broken = rows[~rows["valid"]]
    counts = broken.groupby(["model", "attack", "violation"], sort=False).size()
    return counts.rename("rows").reset_index()
