"""The summary table: accuracy and attack success with confidence intervals, sample counts and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.analysis.rows import concat_rows, constant, number_groups, split_by_group
from robustcaps.attacks.violations import describe_violation
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, GridCell, make_grid, percent
from robustcaps.utils.statistics import wilson

RUN = ["suite", "data", "model", "attack", "goal", "norm", "unit"]
"""Columns that identify a sweep: one attack on one model."""
KEYS = [*RUN, "eps"]
COSTS = ("forwards", "backwards", "queries")
THREAT = ["suite", "data", "model", "goal", "norm", "unit"]
"""Columns of the attacks on a model that have a common worst case."""
NAMES = ("data", "model", "attack", "norm", "unit")
"""Columns that name the lines of a grid, where they differ."""
SUMMARISED = [*KEYS, "seed", "index", "label", "target", "adv_pred", "fooled", "valid", *COSTS]
"""Columns of the rows that accuracy, success and cost are computed from."""
RATES = ("accuracy", "success")
INVALID_MARK = "†"
"""What marks a rate that rests on invalid rows."""
MEASURES = {
    "untargeted": ("accuracy", "Accuracy under attack"),
    "targeted": ("success", "Success of targeted attacks"),
}
"""For each goal of an attack: the rate that is shown, and its name."""


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per (data, model, attack, goal, budget): model by model, in the order in which they came.

    accuracy: share predicted as labelled under the attack; success: share where the attack reached its goal.
    A sample's rows (several targets or seeds) are averaged first and count once, so n is the number of samples and
    Wilson's interval does not pretend to more. forwards, backwards and queries are means per sample; invalid counts
    rows.
    """
    if rows.empty:
        raise ValueError("there are no rows to summarise.")
    groups = number_groups(rows, KEYS)
    _, first = np.unique(groups, return_index=True)
    table = rows[KEYS].iloc[first].reset_index(drop=True)
    table["n"] = count_samples(rows["index"].to_numpy(), groups)
    size = np.bincount(groups)
    table["accuracy"] = np.bincount(groups, weights=rows["adv_pred"] == rows["label"]) / size
    table["success"] = np.bincount(groups, weights=rows["fooled"]) / size
    table["invalid"] = np.bincount(groups, weights=~rows["valid"]).astype(int)
    for cost in COSTS:
        table[cost] = np.bincount(groups, weights=rows[cost]) / table["n"]
    for rate in RATES:
        table[f"{rate}_low"], table[f"{rate}_high"] = wilson(table[rate] * table["n"], table["n"])
    table = table.iloc[_worst_case_after_attacks(table)].reset_index(drop=True)
    intervals = [f"{rate}{end}" for rate in RATES for end in ("", "_low", "_high")]
    return table[[*KEYS, "n", *intervals, "invalid", *COSTS]]


def _worst_case_after_attacks(table: pd.DataFrame) -> NDArray[np.int64]:
    """Return the order of lines that puts the worst case of a model after its attacks, and keeps all others."""
    models = number_groups(table, ["suite", "data", "model"])
    return np.lexsort((table["attack"] == WORST_CASE, models))


def count_samples(index: NDArray[Any], groups: NDArray[np.int64]) -> NDArray[Any]:
    """Return how many different samples each group has."""
    codes, samples = pd.factorize(index)
    pairs = pd.unique(groups * len(samples) + codes)
    return np.bincount(pairs // len(samples))


def with_worst_case(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, and after them, for each model, those of the worst case over its attacks where it has several.

    Of the columns, only those that tables need: the rows of a large run fill much memory.
    """
    rows = rows[[name for name in rows.columns if name in SUMMARISED]]
    parts = [rows]
    for whole in split_by_group(rows, THREAT):
        group = whole[whole["eps"] > 0]
        if len(group["attack"].unique()) > 1:
            parts.append(_worst_case(group))
    return concat_rows(parts) if len(parts) > 1 else rows


def _worst_case(group: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (sample, target, eps): fooled or misclassified if any attack was at this eps or less.

    Rows are sorted by eps, sample and target. Other columns are those of the row that first fooled the sample, or
    misclassified it, by eps; the cost of all attacks is on the row of the smallest eps.
    """
    ordered = group.sort_values("eps", kind="stable", ignore_index=True)
    pairs, sample = np.unique(ordered[["index", "target"]].to_numpy(), axis=0, return_inverse=True)
    sweep, step = np.unique(ordered["eps"].to_numpy(), return_inverse=True)
    shape = len(pairs), len(sweep)
    fooled = ordered["fooled"].to_numpy(dtype=bool)
    wrong = (ordered["adv_pred"] != ordered["label"]).to_numpy(dtype=bool)
    best_first = np.lexsort((~wrong, ~fooled))
    chosen = np.empty(len(pairs), np.int64)
    chosen[sample[best_first[::-1]]] = best_first[::-1]  # the first of each sample is written last
    worst = ordered.iloc[np.tile(chosen, len(sweep))].reset_index(drop=True)
    still_wrong = _cumulative(wrong, sample, step, shape)
    values: dict[str, Any] = {
        "eps": np.repeat(sweep, len(pairs)),
        "fooled": _cumulative(fooled, sample, step, shape),
        "adv_pred": worst["adv_pred"].where(still_wrong, worst["label"]),
        "valid": True,
        "seed": 0,
    }
    for cost in COSTS:
        values[cost] = np.zeros(len(worst))
        values[cost][: len(pairs)] = np.bincount(sample, weights=ordered[cost], minlength=len(pairs))
    values["attack"] = constant(worst["attack"], WORST_CASE, len(worst))
    return worst.assign(**values)[list(group.columns)]


def _cumulative(
    flags: NDArray[np.bool_], sample: NDArray[Any], step: NDArray[Any], shape: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return, for every eps and sample, whether a flag was true at that eps or a smaller one."""
    found = np.zeros(shape, dtype=bool)
    found[sample[flags], step[flags]] = True
    return np.logical_or.accumulate(found, axis=1).T.ravel()


def goal_grid(table: pd.DataFrame, goal: str, *, title: str = "", details: bool = False) -> Grid:
    """Return the lines of a goal for readers: a row per model and attack, a column per eps.

    `details` adds the number of samples, the cost and the invalid rows of each line.
    """
    rate, _ = MEASURES[goal]
    part = table[table["goal"] == goal]
    names = [name for name in NAMES if name in ("model", "attack") or len(set(part[name])) > 1]
    sweep = sorted(part["eps"].unique())
    by_name: dict[tuple[str, ...], list[dict[Any, Any]]] = {}
    for line in part.to_dict("records"):
        by_name.setdefault(tuple(str(line[name]) for name in names), []).append(line)
    rows = [[*key, *_line(lines, rate, sweep, details=details)] for key, lines in by_name.items()]
    numbers = ["n"] * details + [f"{eps:g}" for eps in sweep] + ["passes", "invalid"] * details
    note = f"{INVALID_MARK} some rows are invalid and count as not fooled." if bool(part["invalid"].any()) else ""
    return make_grid([*names, *numbers], rows, title=title, numeric=numbers, note=note)


def _line(lines: list[dict[Any, Any]], rate: str, sweep: list[float], *, details: bool) -> list[GridCell | str]:
    """Return a rate at every eps of a sweep; passes are forward / backward per sample over all eps."""
    by_eps = {line["eps"]: line for line in lines}
    cells: list[GridCell | str] = [_cell(by_eps[eps], rate) if eps in by_eps else "" for eps in sweep]
    if not details:
        return cells
    passes = " / ".join(f"{sum(line[cost] for line in lines):.1f}" for cost in ("forwards", "backwards"))
    return [str(max(line["n"] for line in lines)), *cells, passes, str(sum(line["invalid"] for line in lines))]


def _cell(line: dict[Any, Any], rate: str) -> GridCell:
    """Return a rate, marked if it rests on rows that are invalid."""
    cell = percent(line, rate)
    return replace(cell, text=f"{cell.text} {INVALID_MARK}") if line["invalid"] else cell


def summary_grids(table: pd.DataFrame, *, details: bool = False) -> list[Grid]:
    """Return the whole table for readers: for each dataset and threat model accuracy, then targeted success."""
    grids = []
    for (data, norm, unit), part in table.groupby(["data", "norm", "unit"], sort=False, observed=True):
        for goal in (goal for goal in MEASURES if goal in set(part["goal"])):
            samples = " to ".join(str(n) for n in sorted({part["n"].min(), part["n"].max()}))
            title = f"{data}: {MEASURES[goal][1].lower()} in % (n = {samples}, Wilson 95 %), by eps ({norm}, {unit}):"
            grids.append(goal_grid(part, goal, title=title, details=details))
    return grids


def count_violations(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how many rows of each attack are invalid, and why: one line per (model, attack, violation)."""
    if rows.empty:
        return pd.DataFrame(columns=["model", "attack", "violation", "rows", "sentence"])
    invalid = rows[~rows["valid"]]
    counts = invalid.groupby(["model", "attack", "violation"], sort=False, observed=True).size()
    table = counts.rename("rows").reset_index()
    return table.assign(sentence=table["violation"].map(describe_violation))
