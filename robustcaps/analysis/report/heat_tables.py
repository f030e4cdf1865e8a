"""Matrices of shares as tables of shaded cells: transfer between models, and classes turned into others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from robustcaps.analysis.report.charts import threat_name
from robustcaps.analysis.tables.matrices import SWEEP, TARGETED_SWEEP, at_largest_eps

MAX_CELLS = 4000
"""Of more, only the matrices at the largest eps are shown; the others are in the tables."""


@dataclass(frozen=True)
class HeatCell:
    """A share, and what it is based on."""

    share: float
    details: str


@dataclass(frozen=True)
class HeatTable:
    """A matrix of shares; `keys` is what distinguishes it from the others."""

    keys: Mapping[str, str]
    rows_are: str
    columns_are: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[HeatCell | None]]]


def transfer_tables(matrix: pd.DataFrame) -> list[HeatTable]:
    """Return the share of images crafted on a surrogate (rows) that fool a model (columns), per dataset and eps."""
    if matrix.empty:
        return []
    shown = matrix if len(matrix) <= MAX_CELLS else at_largest_eps(matrix, SWEEP)
    tables = []
    for _, part in shown.groupby(["data", "goal", "norm", "unit", "eps"], sort=False):
        keys = {"Dataset": threat_name(part.iloc[0].to_dict()), "eps": f"{part['eps'].iloc[0]:g}"}
        attacks = list(dict.fromkeys(part["attack"]))
        tables.append(_heat_table(part, keys, rows=("attack", attacks), columns="model", words=("attack", "tried on")))
    return tables


def target_tables(matrix: pd.DataFrame, classes: Mapping[str, Sequence[str]]) -> list[HeatTable]:
    """Return the share of a class (rows) that a targeted attack turns into another (columns)."""
    if matrix.empty:
        return []
    shown = matrix if len(matrix) <= MAX_CELLS else at_largest_eps(matrix, TARGETED_SWEEP)
    tables = []
    for _, part in shown.groupby([*TARGETED_SWEEP, "eps"], sort=False):
        first = part.iloc[0].to_dict()
        names = {number: str(number) for number in {*part["label"], *part["target"]}}
        names |= dict(enumerate(classes.get(first["data"], ())))
        ordered = part.sort_values(["target", "label"]).replace({"label": names, "target": names})
        keys = {"Dataset": threat_name(first), "Model": first["model"], "Attack": first["attack"]}
        keys["eps"] = f"{first['eps']:g}"
        rows = [names[number] for number in sorted(part["label"].unique())]
        tables.append(
            _heat_table(ordered, keys, rows=("label", rows), columns="target", words=("class", "turned into"))
        )
    return tables


def _heat_table(
    part: pd.DataFrame,
    keys: Mapping[str, str],
    *,
    rows: tuple[str, Sequence[Any]],
    columns: str,
    words: tuple[str, str],
) -> HeatTable:
    """Return the matrix of a table's successes."""
    row, row_names = rows
    cells: dict[tuple[Any, Any], HeatCell] = {}
    for line in part.to_dict("records"):
        interval = f"95 % CI {100 * line['success_low']:.0f} to {100 * line['success_high']:.0f} %"
        cells[line[row], line[columns]] = HeatCell(line["success"], f"{interval}, n = {line['n']}")
    heads = list(dict.fromkeys(part[columns]))
    body = [(str(name), [cells.get((name, head)) for head in heads]) for name in row_names]
    return HeatTable(keys, *words, [str(head) for head in heads], body)
