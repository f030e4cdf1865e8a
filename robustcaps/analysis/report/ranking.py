"""The ranked table of models at the top of the report, with what the eps that a reader chooses needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from robustcaps.suite.spec import WORST_CASE

SETTING = ["data", "norm", "unit"]
LAST_NUMBER = "clean_high"
"""The columns of the ranking after this one say what diagnostics found of a model."""
VERDICT = "verdict"
Statuses = list[tuple[str, str]]
"""What was found, in a word each, and what it was found of, if that is needed."""


@dataclass(frozen=True)
class RankedModel:
    """A line of the ranking: its numbers, its worst case by eps, and what diagnostics found by their names."""

    numbers: Mapping[Any, Any]
    worst: Mapping[float, Mapping[Any, Any]]
    statuses: Mapping[str, Statuses]


@dataclass(frozen=True)
class Ranking:
    """The models of a dataset and threat model, the most robust first."""

    data: str
    norm: str
    unit: str
    averaged: str
    """The eps that robust AUC averages over."""
    n: int
    sweep: list[float]
    eps: float
    """The eps whose worst case is shown first."""
    diagnostics: list[str]
    models: list[RankedModel]


def list_rankings(tables: Mapping[str, pd.DataFrame]) -> list[Ranking]:
    """Return the ranking of each dataset and threat model."""
    table = tables["ranking"]
    if table.empty:
        return []
    return [_ranking(part, tables) for _, part in table.groupby(SETTING, sort=False)]


def _ranking(part: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> Ranking:
    """Return the ranking of one setting."""
    first = part.iloc[0].to_dict()
    columns = [str(name) for name in part.columns]
    known = columns[columns.index(LAST_NUMBER) + 1 :]
    diagnostics = [name for name in known if (part[name].fillna("") != "").any()]
    worst = _worst_case(tables["table"], first)
    models = []
    for line in part.to_dict("records"):
        found = {name: _statuses(line, name, tables["verdicts"]) for name in diagnostics}
        own = worst[worst["model"] == line["model"]]
        models.append(RankedModel(line, {point["eps"]: point for point in own.to_dict("records")}, found))
    return Ranking(
        data=str(first["data"]),
        norm=str(first["norm"]),
        unit=str(first["unit"]),
        averaged=str(first["eps"]).replace(" ", ", "),
        n=int(part["n"].max()),
        sweep=sorted(worst["eps"].unique().tolist()),
        eps=float(first["shown_eps"]),
        diagnostics=diagnostics,
        models=models,
    )


def _worst_case(table: pd.DataFrame, setting: Mapping[Any, Any]) -> pd.DataFrame:
    """Return the worst case of untargeted attacks in a setting; of a model with one attack, that attack."""
    lines = table[(table["goal"] == "untargeted") & (table["eps"] > 0)]
    for name in SETTING:
        lines = lines[lines[name] == setting[name]]
    worst = lines["attack"] == WORST_CASE
    return lines[worst | ~lines["model"].isin(lines["model"][worst])]


def _statuses(line: Mapping[Any, Any], name: str, verdicts: pd.DataFrame) -> Statuses:
    """Return what a diagnostic found of a model: several verdicts each with its name, unless all agree."""
    if pd.isna(line[name]) or not line[name]:
        return []
    if name != VERDICT or verdicts.empty:
        return [(str(line[name]), "")]
    own = verdicts[(verdicts["data"] == line["data"]) & (verdicts["model"] == line["model"])]
    found = list(zip(own["status"].astype(str), own["diagnostic"].astype(str), strict=True))
    return list(dict.fromkeys(found)) if len(set(own["status"])) > 1 else [(str(line[name]), "")]
