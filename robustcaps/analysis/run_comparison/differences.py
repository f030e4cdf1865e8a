"""How much robust accuracy differs between two runs: paired on the same samples, or from published tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robustcaps.analysis.rows import split_by_group
from robustcaps.analysis.tables.robust_auc import accuracy_by_sample, worst_case_only
from robustcaps.analysis.tables.summary import with_worst_case
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.statistics import (
    bootstrap_means,
    crossed_difference,
    crossed_mean,
    holm,
    interval_difference,
    mcnemar,
    percentile_interval,
)

if TYPE_CHECKING:
    from robustcaps.analysis.results import Results

AUC, CLEAN, ROBUST, TARGETED = "robust AUC", "clean accuracy", "robust accuracy", "targeted success"
HEADLINES = (AUC, CLEAN)
"""Measures that come first, in this order, and are corrected for multiple comparisons among themselves."""
THREAT = ["data", "model", "norm", "unit"]
CELL = ["data", "model", "attack", "goal", "norm", "unit", "eps"]
SEEDED = [*CELL, "seed"]
INTERVAL = ["difference", "difference_low", "difference_high", "p"]
COLUMNS = ["measure", *SEEDED, "n", "first", "second", *INTERVAL, "paired"]
NEEDED = [*SEEDED, "index", "target", "label", "clean_pred", "adv_pred", "fooled", "valid"]
COSTS = ["forwards", "backwards", "queries"]
Values = NDArray[np.float64]


def list_differences(first: Results, second: Results, same_samples: Collection[str]) -> pd.DataFrame:
    """Return one line per comparison of what both runs have, robust AUC first, then the largest differences.

    `difference` is second minus first. On datasets whose samples are the same the comparison is paired: a bootstrap
    interval over samples, and p of McNemar's exact test, or, of means, of a paired t-test. Otherwise the intervals of
    both tables are combined. p is corrected by Holm, robust AUC and clean accuracy apart from single cells.
    """
    both = first.has_rows and second.has_rows
    paired = list(_paired(first, second, same_samples)) if both else []
    unpaired = list(_unpaired(first, second, same_samples if both else ()))
    table = pd.DataFrame([*paired, *unpaired], columns=COLUMNS)
    if table.empty:
        return table
    for chosen in (table["measure"].isin(HEADLINES), ~table["measure"].isin(HEADLINES)):
        table.loc[chosen, "p"] = holm(table.loc[chosen, "p"].to_numpy(dtype=float))
    return most_important_first(table)


def most_important_first(table: pd.DataFrame) -> pd.DataFrame:
    """Return differences in the order of their measures, the largest first."""
    ranks = {measure: rank for rank, measure in enumerate(HEADLINES)}
    rank = table["measure"].map(ranks).fillna(len(ranks))
    return table.iloc[np.lexsort((-table["difference"].abs(), rank))].reset_index(drop=True)


def _paired(first: Results, second: Results, same_samples: Collection[str]) -> Iterator[dict[Any, Any]]:
    """Yield the comparisons of cells, of clean accuracies and of robust AUC on the same samples."""
    runs = [_rows(results, same_samples) for results in (first, second)]
    if any(rows.empty for rows in runs):
        return
    shared = [_shared(runs[place], runs[1 - place]) for place in (0, 1)]
    rows = pd.concat([part.assign(run=place) for place, part in enumerate(shared)], ignore_index=True)
    if rows.empty:
        return
    lines: list[dict[Any, Any]] = []
    values: list[Values] = []
    for part in split_by_group(rows[rows["eps"] > 0], SEEDED):
        keys = part[SEEDED].iloc[0].to_dict()
        targeted = keys["goal"] == "targeted"
        hit = part["fooled"] if targeted else part["adv_pred"] == part["label"]
        lines.append({"measure": TARGETED if targeted else ROBUST, **keys})
        values.append(_by_sample(part, hit))
    for part in split_by_group(rows, ["data", "model"]):
        lines.append({"measure": CLEAN, **part[["data", "model"]].iloc[0].to_dict()})
        values.append(_by_sample(part, part["clean_pred"] == part["label"]))
    for keys, accuracies in _worst_cases(shared):
        lines.append({"measure": AUC, **keys})
        values.append(accuracies)
    for line, compared in zip(lines, compare_paired(values), strict=True):
        if compared:
            yield {**line, **compared, "paired": True}


def _rows(results: Results, data: Collection[str]) -> pd.DataFrame:
    """Return the rows of attacks on some datasets, with the columns that are compared."""
    rows = results.rows()
    return rows if rows.empty else rows.loc[rows["data"].isin(list(data)), [*NEEDED, *COSTS]]


def _shared(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of cells that another run has, too."""
    return rows.merge(others[SEEDED].drop_duplicates(), on=SEEDED)


def _by_sample(part: pd.DataFrame, hit: pd.Series) -> Values:
    """Return the mean of a share for both runs and the samples that both have, (2, samples)."""
    means = part.assign(hit=hit.astype(float)).pivot_table(index="run", columns="index", values="hit")
    return means.dropna(axis="columns").to_numpy() if len(means) == 2 else np.empty((2, 0))


def _worst_cases(runs: Sequence[pd.DataFrame]) -> Iterator[tuple[dict[Any, Any], Values]]:
    """Yield robust accuracy by sample under the worst case of the attacks that both runs have, averaged over eps."""
    parts = []
    for place, rows in enumerate(runs):
        worst = worst_case_only(with_worst_case(rows.assign(suite="")))
        parts.append(worst.assign(of=worst["model"], model=str(place)))
    rows = pd.concat(parts, ignore_index=True)
    for part in split_by_group(rows, ["data", "norm", "unit", "of"]):
        keys = part[["data", "norm", "unit", "of"]].iloc[0].to_dict()
        keys["model"] = keys.pop("of")
        accuracies = accuracy_by_sample(part)
        if len(accuracies.models) == 2:
            yield {**keys, "attack": WORST_CASE, "goal": "untargeted"}, accuracies.by_sample


def compare_paired(pairs: Sequence[Values]) -> list[dict[str, Any]]:
    """Return what each pair of shares by sample, (2, samples), differs by: second minus first.

    Pairs of as many samples are resampled together.
    """
    found: list[dict[str, Any]] = [{} for _ in pairs]
    sizes = np.array([pair.shape[1] for pair in pairs])
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size).tolist()
        if size == 0:
            continue
        resampled = bootstrap_means(np.stack([pairs[place][1] - pairs[place][0] for place in chosen]))
        low, high = percentile_interval(resampled)
        for column, place in enumerate(chosen):
            before, after = pairs[place]
            interval = dict(zip(INTERVAL, (after.mean() - before.mean(), low[column], high[column]), strict=False))
            means = {"n": int(size), "first": before.mean(), "second": after.mean()}
            found[place] = {**means, **interval, "p": _paired_p(before, after)}
    return found


def _paired_p(before: Values, after: Values) -> float:
    """Return p of McNemar's exact test for shares of 0 and 1, else of a paired t-test."""
    if np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all():
        return float(mcnemar(int((before > after).sum()), int((after > before).sum())))
    return crossed_difference(crossed_mean(after[None]), crossed_mean(before[None]))[3]


def _unpaired(first: Results, second: Results, paired: Collection[str]) -> Iterator[dict[Any, Any]]:
    """Yield the comparisons of the tables of both runs, on datasets that are not compared sample by sample.

    Worst cases are compared only where both runs have the same attacks.
    """
    before, after = (_attacks(results.tables["table"]) for results in (first, second))
    for table, share, keys in (("ranking", "auc", THREAT), ("ranking", "clean", THREAT), ("table", "", CELL)):
        ours, theirs = (results.tables.get(table, pd.DataFrame()) for results in (first, second))
        if ours.empty or theirs.empty:
            continue
        merged = ours[~ours["data"].isin(list(paired))].merge(theirs, on=keys, suffixes=("_1", "_2"))
        for line in merged.to_dict("records"):
            targeted = line.get("goal") == "targeted"
            name = share or ("success" if targeted else "accuracy")
            setting = tuple(line[key] for key in THREAT)
            of_worst_case = share == "auc" or line.get("attack") == WORST_CASE
            if of_worst_case and before.get(setting) != after.get(setting):
                continue
            measure = {"auc": AUC, "clean": CLEAN}.get(share) or (TARGETED if targeted else ROBUST)
            estimates = [tuple(line[f"{name}{end}_{run}"] for end in ("", "_low", "_high")) for run in (1, 2)]
            difference = dict(zip(INTERVAL, interval_difference(estimates[1], estimates[0]), strict=True))
            means = {"n": min(line["n_1"], line["n_2"]), "first": estimates[0][0], "second": estimates[1][0]}
            kept = {key: line[key] for key in keys if not (share == "clean" and key in ("norm", "unit"))}
            yield {"measure": measure, **kept, **means, **difference, "paired": False}


def _attacks(table: pd.DataFrame) -> dict[tuple[Any, ...], set[tuple[str, float]]]:
    """Return the untargeted attacks and their eps for each dataset, model and threat model of a summary."""
    found: dict[tuple[Any, ...], set[tuple[str, float]]] = {}
    for line in table.to_dict("records"):
        if line["goal"] == "untargeted" and line["eps"] > 0 and line["attack"] != WORST_CASE:
            found.setdefault(tuple(line[key] for key in THREAT), set()).add((line["attack"], line["eps"]))
    return found
