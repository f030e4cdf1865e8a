"""Matrices: from which model to which adversarial examples transfer, and which class is turned into which."""

from __future__ import annotations

import pandas as pd

from robustcaps.analysis.tables.summary import RUN
from robustcaps.utils.grid import Grid, GridCell, make_grid, percent
from robustcaps.utils.statistics import wilson

SWEEP = ["data", "norm", "unit"]
TARGETED_SWEEP = ["data", "model", "attack", "norm", "unit"]


def transfer_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often images crafted on a surrogate fool a model: one line per (surrogate, model, attack, eps).

    Surrogates that are attacked themselves come last, in the order of the models, as a matrix has them.
    """
    matrix = _rates(rows[rows["surrogate"] != ""], [*RUN, "surrogate", "eps"])
    places = {model: place for place, model in enumerate(matrix["model"].unique(), start=1)}
    return matrix.sort_values(
        "surrogate", key=lambda names: names.map(lambda name: places.get(name, 0)), kind="stable", ignore_index=True
    )


def target_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often targeted attacks turn a class into another: one line per (model, attack, eps, label, target)."""
    return _rates(rows[rows["goal"] == "targeted"], [*RUN, "eps", "label", "target"])


def _rates(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the success of each group with its interval; a sample's rows (seeds) count once."""
    table = (
        rows.groupby(keys, sort=False, observed=True)
        .agg(n=("index", "nunique"), success=("fooled", "mean"))
        .reset_index()
    )
    table["success_low"], table["success_high"] = wilson(table["success"] * table["n"], table["n"])
    return table


def at_largest_eps(matrix: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the lines of the largest eps within each group."""
    return matrix[matrix["eps"] == matrix.groupby(keys)["eps"].transform("max")]


def transfer_grids(matrix: pd.DataFrame) -> list[Grid]:
    """Return at each eps a matrix of shares fooled: crafted on (rows), tested on (columns)."""
    grids = []
    for (data, goal, norm, unit, eps), part in matrix.groupby(
        ["data", "goal", "norm", "unit", "eps"], sort=False, observed=True
    ):
        models = list(part["model"].unique())
        rows = [
            [str(attack), str(surrogate), *(_share(group, model) for model in models)]
            for (attack, surrogate), group in part.groupby(["attack", "surrogate"], sort=False, observed=True)
        ]
        title = f"{data}, {goal}, eps {eps:g} ({norm}, {unit}), fooled %:"
        grids.append(make_grid(["attack", "crafted on", *models], rows, title=title))
    return grids


def _share(group: pd.DataFrame, model: str) -> GridCell:
    """Return the share of one model's samples that were fooled, empty where it was not attacked."""
    lines = group[group["model"] == model].to_dict("records")
    return percent(lines[0], "success") if lines else GridCell("")


def target_grids(matrix: pd.DataFrame) -> list[Grid]:
    """Return which class is turned into which at the largest eps of each attack, in %, classes by number."""
    grids = []
    for (data, model, attack, norm, _), part in at_largest_eps(matrix, TARGETED_SWEEP).groupby(
        TARGETED_SWEEP, sort=False
    ):
        shares = part.pivot_table(index="label", columns="target", values="success")
        rows = [
            [str(label), *("" if pd.isna(share) else f"{100 * share:.0f}" for share in line)]
            for label, line in zip(shares.index, shares.to_numpy(), strict=True)
        ]
        title = f"{model} on {data}, {attack}, eps {part['eps'].iloc[0]:g} ({norm}), reached %:"
        grids.append(make_grid(["class", *(f"to {target}" for target in shares.columns)], rows, title=title))
    return grids
