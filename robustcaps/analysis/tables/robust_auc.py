"""Robust AUC: accuracy under the worst case of all attacks, averaged over eps, of models and of groups of models.

The models of a group differ in nothing but the seed of their training. On an evenly spaced grid of eps, the AUC is the
mean of the smallest eps that fools a sample, as a share of the largest, up to one step of the grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.analysis.rows import number_groups
from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, GridCell, format_p, make_grid
from robustcaps.utils.statistics import CrossedEstimate, crossed_difference, crossed_mean, holm

SETTING = ["suite", "data", "norm", "unit"]


@dataclass(frozen=True, eq=False)
class SampleAccuracies:
    """The robust accuracy of every sample, averaged over eps, for models that are attacked alike."""

    setting: Mapping[str, Any]
    """Suite, dataset, norm and unit."""
    models: list[str]
    eps: list[float]
    """The grid: every eps > 0 at which all of the models are attacked."""
    by_sample: NDArray[np.float64]
    """(models, samples), without samples that a model lacks."""


def worst_case_only(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the worst case over untargeted attacks, eps > 0; a model's only attack is its worst case."""
    untargeted = (rows["goal"] == "untargeted") & (rows["eps"] > 0)
    attacked = rows.loc[untargeted, [*SETTING, "model", "attack", "eps", "index"]]
    attacked["right"] = (rows["adv_pred"] == rows["label"])[untargeted]
    groups = number_groups(attacked, [*SETTING, "model"])
    is_worst = (attacked["attack"] == WORST_CASE).to_numpy()
    has_worst = np.bincount(groups, weights=is_worst) > 0
    return attacked[is_worst | ~has_worst[groups]].drop(columns="attack")


def accuracy_by_sample(rows: pd.DataFrame) -> SampleAccuracies:
    """Return the robust accuracy of every model and sample of a setting from the rows of `worst_case_only`."""
    eps_of_models = [set(part.unique()) for _, part in rows.groupby("model", observed=True)["eps"]]
    eps = sorted(set.intersection(*eps_of_models))
    rows = rows[rows["eps"].isin(eps)]
    places, models = pd.factorize(rows["model"])
    samples, indices = pd.factorize(rows["index"])
    shape = len(models), len(indices)
    cells = places * shape[1] + samples
    counts = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    sums = np.bincount(cells, weights=rows["right"], minlength=shape[0] * shape[1]).reshape(shape)
    complete = (counts > 0).all(axis=0)
    setting = {name: rows[name].iloc[0] for name in SETTING} if len(rows) else {}
    return SampleAccuracies(setting, [str(model) for model in models], eps, sums[:, complete] / counts[:, complete])


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
    attacked = worst_case_only(rows)
    attacked["group"] = [groups.get(key, "") for key in zip(attacked["model"], attacked["data"], strict=True)]
    attacked = attacked[attacked["group"] != ""]
    lines = []
    for setting, part in attacked.groupby(SETTING, sort=False, observed=True):
        by_group = part.groupby("group", sort=False, observed=True)
        by_sample = {str(group): accuracy_by_sample(own) for group, own in by_group}
        estimates = {group: (own, crossed_mean(own.by_sample)) for group, own in by_sample.items()}
        reference = next(iter(estimates))
        for group, (own, estimate) in estimates.items():
            by_model = own.by_sample.mean(axis=1)
            line = {
                **dict(zip(SETTING, setting, strict=True)),
                "group": group,
                **_describe(group, str(setting[1]), models),
                "models": estimate.models,
                "n": len(estimate.sample_means),
                "eps": " ".join(f"{eps:g}" for eps in own.eps),
                "auc": estimate.mean,
                **dict(zip(("auc_low", "auc_high"), np.clip(estimate.interval, 0, 1), strict=True)),
                "auc_min": by_model.min(),
                "auc_max": by_model.max(),
            }
            first_own, first = estimates[reference]
            lines.append(
                line | _difference(estimate, first, reference, own.eps == first_own.eps and group != reference)
            )
    table = pd.DataFrame(lines)
    if not table.empty:
        compared = table["p"].notna()
        table.loc[compared, "p"] = holm(table.loc[compared, "p"])
    return table


def _groups(models: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the group of each (model, dataset) that has one."""
    return {(model["label"], model["data"]): model["group"] for model in models if "group" in model}


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
    return ", ".join(
        f"{line['group']} ({100 * line['auc']:.1f} %, difference {100 * line['difference']:+.1f}, "
        f"95 % CI {100 * line['difference_low']:.1f} to {100 * line['difference_high']:.1f})"
        for line in lines.to_dict("records")
    )
