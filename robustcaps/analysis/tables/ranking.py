"""The headline of a run: models ranked by robust AUC, and how much any two of them differ on the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.analysis.rows import number_groups, split_by_group
from robustcaps.analysis.tables.comparisons import ALPHA, MAX_COMPARED
from robustcaps.analysis.tables.robust_auc import (
    SETTING,
    SampleAccuracies,
    accuracy_by_sample,
    without_groups,
    worst_case_only,
)
from robustcaps.analysis.tables.summary import count_samples
from robustcaps.diagnostics.kinds.base import Statuses
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, GridCell, format_p, make_grid, percent
from robustcaps.utils.statistics import (
    bootstrap_means,
    crossed_difference,
    crossed_mean,
    holm,
    percentile_interval,
    wilson,
)

DIFFERENCE = ("difference", "difference_low", "difference_high", "p")
MODEL = ["suite", "data", "model"]


def rank_models(
    rows: pd.DataFrame, clean: pd.DataFrame, summary: pd.DataFrame, models: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
    """Return one line per dataset, threat model and model, the most robust first.

    auc: robust accuracy under the worst case of all untargeted attacks, averaged over the eps > 0 that all models of
    the setting share (`eps`), with a bootstrap interval over samples. clean: accuracy on the same images without an
    attack; robust: under the worst case at `shown_eps`, where the models' mean is nearest to one half; both with
    Wilson's interval. Settings whose models share no eps have no line.
    """
    parameters = {(model["label"], model["data"]): model["parameters"] for model in models}
    lines = []
    for accuracies in _settings(rows):
        shown = _at_shown_eps(accuracies, summary)
        low, high = percentile_interval(bootstrap_means(accuracies.by_sample))
        for place in np.argsort(-accuracies.by_sample.mean(axis=1), kind="stable"):
            model = accuracies.models[place]
            lines.append(
                {
                    **accuracies.setting,
                    "model": model,
                    "parameters": parameters.get((model, accuracies.setting["data"])),
                    "n": accuracies.by_sample.shape[1],
                    **dict(zip(("auc", "auc_low", "auc_high"), _mean(accuracies, place, low, high), strict=True)),
                    "eps": " ".join(f"{eps:g}" for eps in accuracies.eps),
                    **shown.loc[model].to_dict(),
                }
            )
    table = pd.DataFrame(lines)
    return table if table.empty else table.merge(clean, on=MODEL, how="left")


def _settings(rows: pd.DataFrame) -> Iterator[SampleAccuracies]:
    """Yield the robust accuracies of each setting whose models share eps and samples."""
    for part in split_by_group(worst_case_only(rows), SETTING):
        accuracies = accuracy_by_sample(part)
        if accuracies.by_sample.size:
            yield accuracies


def _mean(accuracies: SampleAccuracies, place: int, low: Any, high: Any) -> tuple[float, float, float]:
    """Return the AUC of a model with its interval."""
    return float(accuracies.by_sample[place].mean()), float(low[place]), float(high[place])


def _at_shown_eps(accuracies: SampleAccuracies, summary: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each model under the worst case at the eps where their mean is nearest to one half."""
    chosen = summary[(summary["goal"] == "untargeted") & summary["eps"].isin(accuracies.eps)]
    for name, value in accuracies.setting.items():
        chosen = chosen[chosen[name] == value]
    several = set(chosen["model"][chosen["attack"] == WORST_CASE])
    chosen = chosen[(chosen["attack"] == WORST_CASE) | ~chosen["model"].isin(several)]
    shown = (chosen.groupby("eps", observed=True)["accuracy"].mean() - 0.5).abs().idxmin()
    names = {"eps": "shown_eps", "accuracy": "robust", "accuracy_low": "robust_low", "accuracy_high": "robust_high"}
    at_eps = chosen[chosen["eps"] == shown].rename(columns=names)
    return at_eps.assign(model=at_eps["model"].astype(str)).set_index("model")[list(names.values())]


def clean_accuracy(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each model on the attacked images before the attacks, with Wilson's interval."""
    groups = number_groups(rows, MODEL)
    _, first = np.unique(groups, return_index=True)
    table = rows[MODEL].iloc[first].reset_index(drop=True).astype(dict.fromkeys(MODEL, str))
    table["clean"] = np.bincount(groups, weights=rows["clean_pred"] == rows["label"]) / np.bincount(groups)
    n = count_samples(rows["index"].to_numpy(), groups)
    table["clean_low"], table["clean_high"] = wilson(table["clean"] * n, n)
    return table


def compare_auc(rows: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return how much the robust AUC of every two models differs on the same samples, the more robust one first.

    The interval is that of a paired bootstrap; p is that of a paired t-test, corrected by Holm over the table. Models
    of a group are left to the table of groups. Of more than `MAX_COMPARED` models, only the pairs with the most robust
    one are compared.
    """
    lines = []
    for accuracies in _settings(without_groups(rows, models)):
        order = np.argsort(-accuracies.by_sample.mean(axis=1), kind="stable")
        resampled = bootstrap_means(accuracies.by_sample)
        estimates = [crossed_mean(accuracies.by_sample[[place]]) for place in range(len(order))]
        firsts = order[:1] if len(order) > MAX_COMPARED else order
        for rank, first in enumerate(firsts):
            for second in order[rank + 1 :]:
                difference, _, _, p = crossed_difference(estimates[first], estimates[second])
                low, high = percentile_interval(resampled[:, first] - resampled[:, second])
                lines.append(
                    {
                        **accuracies.setting,
                        "first": accuracies.models[first],
                        "second": accuracies.models[second],
                        "n": accuracies.by_sample.shape[1],
                        "auc_first": estimates[first].mean,
                        "auc_second": estimates[second].mean,
                        **dict(zip(DIFFERENCE, (difference, low, high, p), strict=True)),
                    }
                )
    table = pd.DataFrame(lines)
    return table if table.empty else table.assign(p=holm(table["p"]))


def with_statuses(ranking: pd.DataFrame, statuses: Mapping[str, Statuses]) -> pd.DataFrame:
    """Return the ranking with a column per kind of diagnostic that says what it found of a model, '' if nothing."""
    for name, known in statuses.items():
        keys = zip(ranking["data"], ranking["model"], strict=True)
        ranking = ranking.assign(**{name: [known.get(key, "") for key in keys]})
    return ranking


def ranking_grids(table: pd.DataFrame) -> list[Grid]:
    """Return a grid per dataset and threat model, in %."""
    statuses = list(table.columns[table.columns.get_loc("clean_high") + 1 :])  # type: ignore[operator]
    grids = []
    for (data, norm, unit), part in table.groupby(["data", "norm", "unit"], sort=False):
        first = part.iloc[0]
        shown = [name for name in statuses if (part[name].fillna("") != "").any()]
        columns = ["model", "parameters", "clean %", "robust AUC %", f"robust % at eps {first['shown_eps']:g}"]
        rows = [_ranking_row(line, shown) for line in part.to_dict("records")]
        title = f"{data}: models by robust AUC (95 % intervals, n = {part['n'].max()}), {norm}, {unit}:"
        eps = str(first["eps"]).replace(" ", ", ")
        note = (
            f"Robust AUC: accuracy under the worst case of all untargeted attacks, mean over eps {eps}; "
            f"bootstrap over samples. At eps {first['shown_eps']:g}, the mean of the models is nearest to 50 %."
        )
        grids.append(make_grid([*columns, *shown], rows, title=title, note=note, numeric=columns[1:]))
    return grids


def _ranking_row(line: Mapping[Any, Any], statuses: Sequence[str]) -> list[GridCell | str]:
    parameters = "" if pd.isna(line["parameters"]) else f"{line['parameters']:,.0f}"
    shares = [percent(line, share) for share in ("clean", "auc", "robust")]
    return [str(line["model"]), parameters, *shares, *("" if pd.isna(line[name]) else line[name] for name in statuses)]


def difference_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the differences of robust AUC for readers, significant ones in bold."""
    columns = ["data", "norm", "first", "second", "AUC of the first %", "of the second %", "difference", "n", "p"]
    rows = [
        [
            *(str(line[name]) for name in ("data", "norm", "first", "second")),
            *(f"{100 * line[f'auc_{side}']:.1f}" for side in ("first", "second")),
            GridCell(
                f"{100 * line['difference']:.1f}",
                f"{100 * line['difference_low']:.1f} to {100 * line['difference_high']:.1f}",
            ),
            str(line["n"]),
            GridCell(format_p(line["p"]), bold=line["p"] < ALPHA),
        ]
        for line in table.to_dict("records")
    ]
    note = "On the same samples: 95 % intervals of a paired bootstrap; paired t-test, p by Holm for all lines."
    return [make_grid(columns, rows, note=note, numeric=columns[4:8])]
