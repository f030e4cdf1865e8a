"""Which model is more robust than which: paired tests on the same samples, corrected for how many there are."""

from __future__ import annotations

import itertools

import pandas as pd

from robustcaps.statistics import holm, mcnemar
from robustcaps.tables import WORST_CASE

SETTING = ["suite", "data", "attack", "goal", "norm", "unit", "eps"]
ALPHA = 0.05


def compare_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per pair of models and untargeted attack: their accuracies on the samples both have, and p.

    A sample counts as right only if it is with every seed. p is McNemar's, corrected by Holm over all lines.
    """
    attacked = rows[(rows["goal"] == "untargeted") & (rows["eps"] > 0)]
    marked = attacked.assign(right=attacked["adv_pred"] == attacked["label"])
    lines = []
    for names, part in marked.groupby(SETTING, sort=False):
        right = part.pivot_table(index="index", columns="model", values="right", aggfunc="min", sort=False)
        for first, second in itertools.combinations(right.columns, 2):
            both = right[[first, second]].dropna().astype(bool)
            one, other = both[first], both[second]
            accuracies = {"accuracy_first": one.mean(), "accuracy_second": other.mean()}
            counts = {"only_first": int((one & ~other).sum()), "only_second": int((other & ~one).sum())}
            models = {"first": first, "second": second, "n": len(both)}
            lines.append({**dict(zip(SETTING, names, strict=True)), **models, **accuracies, **counts})
    table = pd.DataFrame(lines)
    if not table.empty:
        table["p"] = holm(mcnemar(table["only_first"], table["only_second"]))
    return table


def headlines(comparisons: pd.DataFrame) -> pd.DataFrame:
    """Return one line per pair, dataset and norm: under the worst case, at the eps that tells them apart best.

    That is where half of the samples withstand, on average of the two; p stays corrected for all lines.
    """
    if comparisons.empty:
        return comparisons
    worst = comparisons["attack"] == WORST_CASE
    chosen = comparisons[worst] if worst.any() else comparisons
    half = (chosen["accuracy_first"] + chosen["accuracy_second"] - 1).abs()
    pairs = chosen.assign(half=half).sort_values("half", kind="stable")
    return pairs.drop_duplicates(["suite", "data", "norm", "unit", "first", "second"]).drop(columns="half").sort_index()


def sentences(comparisons: pd.DataFrame) -> list[str]:
    """Say in words what lines of a table of comparisons show: who is more robust, or that nobody surely is."""
    told = []
    for line in comparisons.to_dict("records"):
        order = ("first", "second") if line["accuracy_first"] >= line["accuracy_second"] else ("second", "first")
        better, worse = (line[name] for name in order)
        shares = " vs ".join(f"{100 * line[f'accuracy_{name}']:.1f} %" for name in order)
        p = "p < 0.001" if line["p"] < 0.001 else f"p = {line['p']:.3f}"
        where = f"under {line['attack']} at eps {line['eps']:g} ({line['norm']}) on {line['data']}"
        verdict = "is more robust than" if line["p"] < ALPHA else "is not surely more robust than"
        told.append(f"{better} {verdict} {worse} {where}: {shares}, {p}, n = {line['n']}")
    return told
