"""Which model is more robust, and which attack fools more: paired tests on the same samples, corrected for how many."""

from __future__ import annotations

import itertools

import pandas as pd

from robustcaps.analysis.tables.summary import WORST_CASE
from robustcaps.utils.markdown import markdown_table
from robustcaps.utils.statistics import holm, mcnemar

BUDGET = ["goal", "norm", "unit", "eps"]
ALPHA = 0.05


def compare_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Return who is more robust: a line per pair of models, for each untargeted attack and eps.

    A sample counts as right only if it is with every seed.
    """
    return _compare(rows, rivals="model", setting=["suite", "data", "attack", *BUDGET], unit=["index"])


def compare_attacks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what fools more: a line per pair of untargeted attacks with the same budget, for each model and eps.

    Only seeds that both have count: an attack must not win by trying more often.
    """
    setting = ["suite", "data", "model", *BUDGET]
    return _compare(rows[rows["attack"] != WORST_CASE], rivals="attack", setting=setting, unit=["index", "seed"])


def _compare(rows: pd.DataFrame, *, rivals: str, setting: list[str], unit: list[str]) -> pd.DataFrame:
    """Return a line per pair of rivals in the same setting: their accuracies on the samples both have, and p.

    Pairs are those with the same `unit`; then a sample counts as right only if all of its units are. p is McNemar's,
    corrected by Holm over all lines.
    """
    attacked = rows[(rows["goal"] == "untargeted") & (rows["eps"] > 0)]
    marked = attacked.assign(right=attacked["adv_pred"] == attacked["label"])
    lines = []
    for names, part in marked.groupby(setting, sort=False):
        right = part.pivot_table(index=unit, columns=rivals, values="right", aggfunc="min", sort=False)
        for first, second in itertools.combinations(right.columns, 2):
            both = right[[first, second]].dropna().astype(bool).groupby(level="index", sort=False).min()
            if both.empty:
                continue
            one, other = both[first], both[second]
            accuracies = {"accuracy_first": one.mean(), "accuracy_second": other.mean()}
            counts = {"only_first": int((one & ~other).sum()), "only_second": int((other & ~one).sum())}
            pair = {"first": first, "second": second, "n": len(both)}
            lines.append({**dict(zip(setting, names, strict=True)), **pair, **accuracies, **counts})
    table = pd.DataFrame(lines)
    if not table.empty:
        table["p"] = holm(mcnemar(table["only_first"], table["only_second"]))
    return table


def comparisons_markdown(table: pd.DataFrame) -> str:
    """Return comparisons, of models or of attacks, as Markdown; what is surely so is bold."""
    fixed = "attack" if "attack" in table else "model"
    head = ["data", fixed, "eps", "first", "second", "accuracy of the first %", "of the second %", "n", "McNemar"]
    lines = [
        [
            *(str(line[name]) for name in ("data", fixed)),
            f"{line['eps']:g} {line['norm']}",
            *(str(line[name]) for name in ("first", "second")),
            *(f"{100 * line[f'accuracy_{side}']:.1f}" for side in ("first", "second")),
            str(line["n"]),
            f"**{p_in_words(line['p'])}**" if line["p"] < ALPHA else p_in_words(line["p"]),
        ]
        for line in table.to_dict("records")
    ]
    note = "McNemar's exact test on the same samples, p corrected by Holm for all lines; bold: below 0.05."
    return f"{markdown_table(head, lines)}\n{note}\n"


def p_in_words(p: float) -> str:
    """Return a p as it is printed."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


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
        where = f"under {line['attack']} at eps {line['eps']:g} ({line['norm']}) on {line['data']}"
        verdict = "is more robust than" if line["p"] < ALPHA else "is not surely more robust than"
        told.append(f"{better} {verdict} {worse} {where}: {shares}, {p_in_words(line['p'])}, n = {line['n']}")
    return told
