"""Which model is more robust, and which attack is stronger: paired tests on the same samples, Holm-corrected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.analysis.rows import split_by_group
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, GridCell, format_p, make_grid
from robustcaps.utils.statistics import holm, mcnemar

BUDGET = ["goal", "norm", "unit", "eps"]
ALPHA = 0.05
MAX_COMPARED = 20
"""Of more models or attacks in one setting, only the pairs with the best are compared."""
Floats = NDArray[np.float32]


def compare_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare the robust accuracy of every pair of models, for each untargeted attack and eps.

    A sample counts as right only if it is classified correctly with every seed.
    """
    return _compare(rows, compared="model", setting=["suite", "data", "attack", *BUDGET], common_seeds=False)


def compare_attacks(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare every pair of untargeted attacks with the same budget, for each model and eps.

    Only seeds that both have count: an attack must not win by trying more often.
    """
    setting = ["suite", "data", "model", *BUDGET]
    return _compare(rows[rows["attack"] != WORST_CASE], compared="attack", setting=setting, common_seeds=True)


def _compare(rows: pd.DataFrame, *, compared: str, setting: list[str], common_seeds: bool) -> pd.DataFrame:
    """Return a line per pair in the same setting: their accuracies on the samples that both have, and p.

    p is that of McNemar's exact test, corrected by Holm over all lines. Of more than `MAX_COMPARED` in a setting only
    the pairs with the most accurate model, or with the strongest attack, are compared.
    """
    attacked = rows[(rows["goal"] == "untargeted") & (rows["eps"] > 0)]
    marked = attacked[[*setting, compared, "seed", "index"]].assign(right=attacked["adv_pred"] == attacked["label"])
    parts = []
    for part in split_by_group(marked, setting):
        labels, grid = _right_by_seed(part, compared)
        pairs = _count_pairs(grid, best_is_right=compared == "model", common_seeds=common_seeds)
        pairs["first"], pairs["second"] = labels[pairs["first"]], labels[pairs["second"]]
        keys = {name: part[name].iloc[0] for name in setting}
        parts.append(pd.DataFrame(pairs).assign(**keys))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if table.empty:
        return pd.DataFrame()
    table["p"] = holm(mcnemar(table["only_first"], table["only_second"]))
    columns = ["first", "second", "n", "accuracy_first", "accuracy_second", "only_first", "only_second", "p"]
    return table[[*setting, *columns]]


def _right_by_seed(part: pd.DataFrame, compared: str) -> tuple[NDArray[Any], Floats]:
    """Return what is compared, in order of appearance, and right (seeds, samples, compared): 1, 0, or NaN if absent."""
    codes, labels = pd.factorize(part[compared])
    seeds, seed_values = pd.factorize(part["seed"])
    samples, sample_values = pd.factorize(part["index"])
    grid = np.full((len(seed_values), len(sample_values), len(labels)), np.nan, np.float32)
    grid[seeds, samples, codes] = part["right"].to_numpy()
    return np.asarray(labels, dtype=object), grid


def _count_pairs(grid: Floats, *, best_is_right: bool, common_seeds: bool) -> dict[str, NDArray[Any]]:
    """Return the pairs to compare and what McNemar's test counts, as columns.

    All samples of what has the same seeds are counted by one product of matrices.
    """
    count = grid.shape[2]
    firsts, seconds = _choose_pairs(grid, best_is_right)
    if not common_seeds:
        grid = np.fmin.reduce(grid, axis=0, keepdims=True)
    has_seed: NDArray[np.bool_] = np.logical_not(np.isnan(grid).all(axis=1))
    patterns = [tuple(has_seed[:, place]) for place in range(count)]
    keys = [tuple(np.logical_and(patterns[a], patterns[b])) for a, b in zip(firsts, seconds, strict=True)]
    columns = {name: np.zeros(len(firsts)) for name in ("n", "right_first", "right_second", "right_both")}
    for key in set(keys):
        right = grid[np.array(key)].min(axis=0) if any(key) else np.full(grid.shape[1:], np.nan, np.float32)
        there = (~np.isnan(right)).astype(np.float32)
        right = np.nan_to_num(right)
        chosen = np.array([place for place, each in enumerate(keys) if each == key])
        products = {
            "n": there.T @ there,
            "right_first": right.T @ there,
            "right_second": there.T @ right,
            "right_both": right.T @ right,
        }
        for name, product in products.items():
            columns[name][chosen] = product[firsts[chosen], seconds[chosen]]
    kept = columns["n"] > 0
    n, first, second, both = (columns[name][kept] for name in ("n", "right_first", "right_second", "right_both"))
    return {
        "first": firsts[kept],
        "second": seconds[kept],
        "n": n.astype(int),
        "accuracy_first": first / n,
        "accuracy_second": second / n,
        "only_first": (first - both).astype(int),
        "only_second": (second - both).astype(int),
    }


def _choose_pairs(grid: Floats, best_is_right: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return all pairs, or, of many, those with the highest accuracy (or the lowest), in the order of the columns."""
    count = grid.shape[2]
    if count <= MAX_COMPARED:
        firsts, seconds = np.triu_indices(count, k=1)
        return firsts, seconds
    accuracy = np.nanmean(grid, axis=(0, 1))
    best = int(np.nanargmax(accuracy) if best_is_right else np.nanargmin(accuracy))
    others = np.array([place for place in range(count) if place != best])
    return np.minimum(best, others), np.maximum(best, others)


def comparison_grids(table: pd.DataFrame) -> list[Grid]:
    """Return comparisons, of models or of attacks, for readers; significant ones in bold."""
    fixed = "attack" if "attack" in table else "model"
    columns = ["data", fixed, "eps", "first", "second", "accuracy of the first %", "of the second %", "n", "McNemar"]
    rows = [
        [
            *(str(line[name]) for name in ("data", fixed)),
            f"{line['eps']:g} {line['norm']}",
            *(str(line[name]) for name in ("first", "second")),
            *(f"{100 * line[f'accuracy_{side}']:.1f}" for side in ("first", "second")),
            str(line["n"]),
            GridCell(format_p(line["p"]), bold=line["p"] < ALPHA),
        ]
        for line in table.to_dict("records")
    ]
    note = "McNemar's exact test on the same samples, p corrected by Holm for all lines; bold: p < 0.05."
    return [make_grid(columns, rows, note=note, numeric=columns[5:8])]
