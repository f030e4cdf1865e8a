"""Rows looked at from other sides: from which model images transfer, and which class becomes which."""

from __future__ import annotations

import pandas as pd

from robustcaps.analysis.tables.summary import RUN
from robustcaps.utils.markdown import markdown_table, percent
from robustcaps.utils.statistics import wilson

SWEEP = ["data", "norm", "unit"]
AIM = ["data", "model", "attack", "norm", "unit"]


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
    table = rows.groupby(keys, sort=False).agg(n=("index", "nunique"), success=("fooled", "mean")).reset_index()
    table["success_low"], table["success_high"] = wilson(table["success"] * table["n"], table["n"])
    return table


def at_largest_eps(matrix: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the lines of the largest eps within each group."""
    return matrix[matrix["eps"] == matrix.groupby(keys)["eps"].transform("max")]


def transfer_markdown(matrix: pd.DataFrame) -> str:
    """Return who fools whom as Markdown: at each eps a matrix of shares, crafted on (rows) and tried on (columns)."""
    pages = []
    for (data, goal, norm, unit, eps), part in matrix.groupby(["data", "goal", "norm", "unit", "eps"], sort=False):
        models = list(part["model"].unique())
        lines = [
            [str(attack), str(surrogate), *(_share(group, model) for model in models)]
            for (attack, surrogate), group in part.groupby(["attack", "surrogate"], sort=False)
        ]
        head = ["attack", "crafted on", *models]
        pages.append(f"{data}, {goal}, eps {eps:g} ({norm}, {unit}), fooled %:\n\n{markdown_table(head, lines)}")
    return "\n".join(pages)


def _share(group: pd.DataFrame, model: str) -> str:
    """Return the share of one model's samples that were fooled, '' where it was not attacked."""
    lines = group[group["model"] == model].to_dict("records")
    return percent(lines[0], "success") if lines else ""


def targets_markdown(matrix: pd.DataFrame) -> str:
    """Return which class becomes which as Markdown, at the largest eps of each attack; in %, classes by number."""
    pages = []
    for (data, model, attack, norm, _), part in at_largest_eps(matrix, AIM).groupby(AIM, sort=False):
        shares = part.pivot_table(index="label", columns="target", values="success")
        lines = [
            [str(label), *("" if pd.isna(share) else f"{100 * share:.0f}" for share in line)]
            for label, line in zip(shares.index, shares.to_numpy(), strict=True)
        ]
        eps = part["eps"].iloc[0]
        head = ["class", *(f"to {target}" for target in shares.columns)]
        title = f"{model} on {data}, {attack}, eps {eps:g} ({norm}), reached %:"
        pages.append(f"{title}\n\n{markdown_table(head, lines)}")
    return "\n".join(pages)
