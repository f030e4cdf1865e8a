"""What of a large table is drawn: figures stay legible with a dozen models and attacks, the rest is in the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from robustcaps.suite.spec import WORST_CASE

MAX_DRAWN = 12
"""Largest number of models, attacks or panels in a figure."""


def select_drawn(table: pd.DataFrame, rate: str = "accuracy") -> pd.DataFrame:
    """Return the lines of at most `MAX_DRAWN` attacks, the strongest, and of as many models, the most robust.

    The worst case over attacks is always among them.
    """
    strongest = _ranked(table, "attack", rate, ascending=rate == "accuracy", always=(WORST_CASE,))
    robust = _ranked(table, "model", rate, ascending=rate != "accuracy")
    return table[table["attack"].isin(strongest) & table["model"].isin(robust)]


def _ranked(table: pd.DataFrame, column: str, rate: str, *, ascending: bool, always: Sequence[str] = ()) -> list[Any]:
    """Return the values of a column with the lowest (or highest) mean rate, in order of appearance."""
    names = list(table[column].unique())
    if len(names) <= MAX_DRAWN:
        return names
    means = table.groupby(column, observed=True)[rate].mean().sort_values(ascending=ascending, kind="stable")
    kept = [name for name in always if name in names]
    kept += [name for name in means.index if name not in kept][: MAX_DRAWN - len(kept)]
    return kept


def describe_selection(table: pd.DataFrame, drawn: pd.DataFrame) -> str:
    """Return what was left out, for a title; '' if nothing was."""
    parts = [
        f"{len(drawn[column].unique())} of {len(table[column].unique())} {column}s"
        for column in ("attack", "model")
        if len(drawn[column].unique()) < len(table[column].unique())
    ]
    return f", {' and '.join(parts)}; all in the tables" if parts else ""
