"""Matrices: from which model to which adversarial examples transfer, and which class is turned into which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from robustcaps.analysis.tables.summary import RUN
from robustcaps.utils.grid import Grid, GridCell, make_grid, percent
from robustcaps.utils.statistics import wilson

SWEEP = ["data", "norm", "unit"]
TARGETED_SWEEP = ["data", "model", "attack", "norm", "unit"]
CLASS_COLUMNS = {"label_name": "label", "target_name": "target"}
"""The columns with names of classes, where they are known, and those with their numbers."""


def transfer_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often images crafted on a surrogate fool a model: one line per (surrogate, model, attack, eps).

    Surrogates that are attacked themselves come last, in the order of the models, as a matrix has them.
    """
    matrix = _rates(rows[rows["surrogate"] != ""], [*RUN, "surrogate", "eps"])
    places = {model: place for place, model in enumerate(matrix["model"].unique(), start=1)}
    return matrix.sort_values(
        "surrogate", key=lambda names: names.map(lambda name: places.get(name, 0)), kind="stable", ignore_index=True
    )


def target_matrix(rows: pd.DataFrame, classes: Mapping[str, Sequence[str]] | None = None) -> pd.DataFrame:
    """Return how often targeted attacks turn a class into another: one line per (model, attack, eps, label, target).

    `classes` has the names of each dataset's classes; with them, the table names the classes, too.
    """
    matrix = _rates(rows[rows["goal"] == "targeted"], [*RUN, "eps", "label", "target"])
    if not classes:
        return matrix
    for name, number in CLASS_COLUMNS.items():
        pairs = zip(matrix["data"], matrix[number], strict=True)
        matrix[name] = [_class_name(classes.get(str(data), ()), label) for data, label in pairs]
    return matrix


def _class_name(names: Sequence[str], number: int) -> str:
    """Return the name of a class, or its number where it has none."""
    return names[number] if 0 <= number < len(names) else str(number)


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
    """Return which class is turned into which at the largest eps of each attack, in %."""
    grids = []
    for (data, model, attack, norm, _), part in at_largest_eps(matrix, TARGETED_SWEEP).groupby(
        TARGETED_SWEEP, sort=False
    ):
        shares = part.pivot_table(index="label", columns="target", values="success")
        names = class_names(part)
        rows = [
            [names[int(label)], *("" if pd.isna(share) else f"{100 * share:.0f}" for share in line)]
            for label, line in zip(shares.index, shares.to_numpy(), strict=True)
        ]
        title = f"{model} on {data}, {attack}, eps {part['eps'].iloc[0]:g} ({norm}), reached %:"
        grids.append(
            make_grid(["class", *(f"to {names[int(target)]}" for target in shares.columns)], rows, title=title)
        )
    return grids


def class_names(matrix: pd.DataFrame) -> dict[int, str]:
    """Return the names of a dataset's classes by number, in their order; numbers where the names are not known."""
    named = {
        number: str(name)
        for names, numbers in CLASS_COLUMNS.items()
        for number, name in zip(matrix[numbers], matrix[names if names in matrix else numbers], strict=True)
    }
    return dict(sorted(named.items()))
