"""Rows summed up: accuracy and attack success with their intervals, sample counts and cost."""

from __future__ import annotations

import pandas as pd

from robustcaps.statistics import wilson

KEYS = ["suite", "data", "model", "attack", "goal", "norm", "unit", "eps"]
RATES = ("accuracy", "success")


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per (data, model, attack, goal, budget), in the order in which they came.

    accuracy: share predicted as labelled under the attack; success: share where the attack reached its goal.
    A sample's rows (several targets or seeds) are averaged first and count once, so n is the number of samples and
    Wilson's interval does not pretend to more. forwards and backwards are means per sample; invalid counts rows.
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
            forwards=("forwards", "sum"),
            backwards=("backwards", "sum"),
        )
        .reset_index()
    )
    for cost in ("forwards", "backwards"):
        table[cost] = table[cost] / table["n"]
    for rate in RATES:
        table[f"{rate}_low"], table[f"{rate}_high"] = wilson(table[rate] * table["n"], table["n"])
    intervals = [f"{rate}{end}" for rate in RATES for end in ("", "_low", "_high")]
    return table[[*KEYS, "n", *intervals, "invalid", "forwards", "backwards"]]


def markdown(table: pd.DataFrame, goal: str) -> str:
    """Return the lines of a goal as a Markdown table: a row per model and attack, a column per eps."""
    rate = "accuracy" if goal == "untargeted" else "success"
    part = table[table["goal"] == goal]
    low, high = (part[f"{rate}{end}"] for end in ("_low", "_high"))
    percents = zip(part[rate] * 100, low * 100, high * 100, strict=True)
    text = [f"{value:.1f} ({below:.0f}-{above:.0f})" for value, below, above in percents]
    names = ["data", "model", "attack", *(name for name in ("norm", "unit") if len(part[name].unique()) > 1)]
    grid = part.assign(text=text).pivot_table(index=names, columns="eps", values="text", aggfunc="first", sort=False)
    lines = [[*map(str, index), *line] for index, line in zip(grid.index, grid.fillna("").to_numpy(), strict=True)]
    head = [*names, *(f"{eps:g}" for eps in grid.columns)]
    rule = ["---"] * len(names) + ["---:"] * len(grid.columns)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *lines]) + "\n"


def violations(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often each attack broke which rule on which model: one line per (model, attack, violation)."""
    broken = rows[~rows["valid"]]
    counts = broken.groupby(["model", "attack", "violation"], sort=False).size()
    return counts.rename("rows").reset_index()
