"""Robust AUC of groups of models that differ in nothing but the seed of their training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.analysis.tables.comparisons import ALPHA, format_p
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, GridCell, make_grid
from robustcaps.utils.statistics import CrossedEstimate, crossed_difference, crossed_mean, holm

SETTING = ["suite", "data", "norm", "unit"]


def without_groups(rows: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of models that belong to no group: those of a group are compared by their mean."""
    grouped = _groups(models)
    if not grouped or rows.empty:
        return rows
    keys = zip(rows["model"], rows["data"], strict=True)
    return rows[[key not in grouped for key in keys]]


def tabulate_auc(rows: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a line per dataset, threat model and group, in the order in which they came; none without groups.

    auc: the robust accuracy under the worst case of all untargeted attacks, averaged over the eps > 0 of the run, the
    samples and the models of the group. Its 95 % interval covers other samples and other seeds of the training
    (`crossed_mean`); auc_min and auc_max are those of single models. difference: against the suite's first group, on
    the same samples and eps; p is corrected by Holm over the table.
    """
    groups = _groups(models)
    if not groups:
        return pd.DataFrame()
    attacked = rows[(rows["goal"] == "untargeted") & (rows["eps"] > 0)]
    attacked = attacked.assign(
        group=[groups.get(key, "") for key in zip(attacked["model"], attacked["data"], strict=True)],
        right=attacked["adv_pred"] == attacked["label"],
    )
    attacked = attacked[attacked["group"] != ""]
    lines = []
    for setting, part in attacked.groupby(SETTING, sort=False, observed=True):
        estimates = {str(group): _estimate(own) for group, own in part.groupby("group", sort=False, observed=True)}
        reference = next(iter(estimates))
        for group, (grid, by_model, estimate) in estimates.items():
            line = {
                **dict(zip(SETTING, setting, strict=True)),
                "group": group,
                **_describe(group, str(setting[1]), models),
                "models": estimate.models,
                "n": len(estimate.sample_means),
                "eps": " ".join(f"{eps:g}" for eps in grid),
                "auc": estimate.mean,
                **dict(zip(("auc_low", "auc_high"), np.clip(estimate.interval, 0, 1), strict=True)),
                "auc_min": by_model.min(),
                "auc_max": by_model.max(),
            }
            first_grid, _, first = estimates[reference]
            lines.append(line | _difference(estimate, first, reference, grid == first_grid and group != reference))
    table = pd.DataFrame(lines)
    if not table.empty:
        compared = table["p"].notna()
        table.loc[compared, "p"] = holm(table.loc[compared, "p"])
    return table


def _groups(models: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the group of each (model, dataset) that has one."""
    return {(model["label"], model["data"]): model["group"] for model in models if "group" in model}


def _estimate(rows: pd.DataFrame) -> tuple[list[float], pd.Series[float], CrossedEstimate]:
    """Return the eps of a group, the AUC of each of its models, and the AUC of the group."""
    worst = rows["attack"] == WORST_CASE
    rows = rows[worst | ~rows["model"].isin(rows["model"][worst])]  # a model's only attack is its worst case
    robust = rows.assign(right=rows["right"].astype(float)).pivot_table(
        index="model", columns="index", values="right", aggfunc="mean", sort=False, observed=True
    )
    robust = robust.dropna(axis="columns")
    return sorted(rows["eps"].unique()), robust.mean(axis=1), crossed_mean(robust.to_numpy())


def _describe(group: str, data: str, models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean test accuracy of a group's models, and whether their routing is alive."""
    own = [model for model in models if model.get("group") == group and model["data"] == data]
    statuses = Counter(model["routing"]["status"] for model in own if model.get("routing"))
    several = ", ".join(f"{count} {status}" for status, count in statuses.items())
    routing = several if len(statuses) > 1 else next(iter(statuses), np.nan)
    return {"accuracy": float(np.mean([model["accuracy"] for model in own])), "routing": routing}


def _difference(estimate: CrossedEstimate, first: CrossedEstimate, reference: str, comparable: bool) -> dict[str, Any]:
    """Return the comparison with the reference group; empty for itself and where the eps differ."""
    names = ("difference", "difference_low", "difference_high", "p")
    shared = comparable and len(estimate.sample_means) == len(first.sample_means)
    values = crossed_difference(estimate, first) if shared else (np.nan,) * 4
    return {"reference": reference, **dict(zip(names, values, strict=True))}


def auc_grids(table: pd.DataFrame) -> list[Grid]:
    """Return a grid per dataset and threat model."""
    grids = []
    for (data, norm, unit), part in table.groupby(["data", "norm", "unit"], sort=False, observed=True):
        first = part.iloc[0]
        against = f"against {first['reference']}"
        columns = ["group", "models", "routing", "test accuracy", "robust AUC", against, "p"]
        rows = [_auc_row(line) for line in part.to_dict("records")]
        title = f"{data}: robust AUC in %, mean over eps {first['eps']} ({norm}, {unit}), {first['n']} samples:"
        grids.append(make_grid(columns, rows, title=title, numeric=[columns[1], *columns[3:]]))
    return grids


AUC_NOTE = (
    "Robust AUC: accuracy under the worst case of all attacks, averaged over eps > 0. Intervals (95 %) cover other "
    "samples and other seeds of the training; p by Holm."
)


def _auc_row(line: Mapping[Any, Any]) -> list[GridCell | str]:
    """Return a line of the table for readers."""
    compared = not pd.isna(line["p"])
    interval = f"{100 * line['difference_low']:+.1f} to {100 * line['difference_high']:+.1f}"
    return [
        str(line["group"]),
        str(line["models"]),
        "" if pd.isna(line["routing"]) else str(line["routing"]),
        f"{100 * line['accuracy']:.1f}",
        GridCell(f"{100 * line['auc']:.1f}", f"{100 * line['auc_low']:.1f}-{100 * line['auc_high']:.1f}"),
        GridCell(f"{100 * line['difference']:+.1f}", interval) if compared else "",
        GridCell(format_p(line["p"]), bold=line["p"] < ALPHA) if compared else "",
    ]


def auc_sentences(table: pd.DataFrame) -> list[str]:
    """Return a sentence per dataset and threat model: which groups differ from the first one."""
    sentences = []
    for (data, norm, _), part in table.groupby(["data", "norm", "unit"], sort=False, observed=True):
        reference = part[part["group"] == part["reference"]].iloc[0]
        significant = part[part["p"] < ALPHA]
        lists = [
            f"{word}: {_list_groups(those)}"
            for word, those in (
                ("more robust", significant[significant["difference"] > 0].sort_values("auc", ascending=False)),
                ("less robust", significant[significant["difference"] < 0].sort_values("auc")),
            )
            if len(those)
        ]
        undecided = part[part["p"] >= ALPHA]
        if len(undecided):
            lists.append(f"no significant difference: {_list_groups(undecided)}")
        sentences.append(
            f"{data}: against '{reference['group']}' (robust AUC {100 * reference['auc']:.1f} %, {norm}), "
            f"{'; '.join(lists)} (p < {ALPHA:g}, corrected by Holm)."
        )
    return sentences


def _list_groups(lines: pd.DataFrame) -> str:
    return ", ".join(f"{line['group']} ({100 * line['auc']:.1f} %)" for line in lines.to_dict("records"))
