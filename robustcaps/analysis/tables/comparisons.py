"""Which model is more robust, and which attack is stronger: paired tests on the same samples, Holm-corrected."""

from __future__ import annotations

import itertools

import pandas as pd

from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, GridCell, make_grid
from robustcaps.utils.statistics import holm, mcnemar

BUDGET = ["goal", "norm", "unit", "eps"]
ALPHA = 0.05


def compare_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare the robust accuracy of every pair of models, for each untargeted attack and eps.

    A sample counts as right only if it is classified correctly with every seed.
    """
    return _compare(rows, compared="model", setting=["suite", "data", "attack", *BUDGET], unit=["index"])


def compare_attacks(rows: pd.DataFrame) -> pd.DataFrame:
    """Compare every pair of untargeted attacks with the same budget, for each model and eps.

    Only seeds that both have count: an attack must not win by trying more often.
    """
    setting = ["suite", "data", "model", *BUDGET]
    return _compare(rows[rows["attack"] != WORST_CASE], compared="attack", setting=setting, unit=["index", "seed"])


def _compare(rows: pd.DataFrame, *, compared: str, setting: list[str], unit: list[str]) -> pd.DataFrame:
    """Return a line per pair in the same setting: their accuracies on the samples that both have, and p.

    Rows are paired by `unit`; then a sample counts as right only if all of its units are. p is that of McNemar's exact
    test, corrected by Holm over all lines.
    """
    attacked = rows[(rows["goal"] == "untargeted") & (rows["eps"] > 0)]
    marked = attacked.assign(right=attacked["adv_pred"] == attacked["label"])
    lines = []
    for names, part in marked.groupby(setting, sort=False):
        right = part.pivot_table(index=unit, columns=compared, values="right", aggfunc="min", sort=False)
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


def comparison_grids(table: pd.DataFrame) -> list[Grid]:
    """Return comparisons, of models or of attacks, for readers; significant ones in bold."""
    fixed = "attack" if "attack" in table else "model"
    columns = ["data", fixed, "eps", "first", "second", "accuracy of the first %", "of the second %", "n", "McNemar"]
    rows = [
        [
            *(str(line[name]) for name in ("data", fixed)),
            f"{line['eps']:g} {line['norm']}",
            *(str(line[name]) for name in ("first", "second")),
            *(f"{100 * line[f'accuracy_{side}']:.1f}" for side in ("first", "second")),
            str(line["n"]),
            GridCell(format_p(line["p"]), bold=line["p"] < ALPHA),
        ]
        for line in table.to_dict("records")
    ]
    note = "McNemar's exact test on the same samples, p corrected by Holm for all lines; bold: p < 0.05."
    return [make_grid(columns, rows, note=note, numeric=columns[5:8])]


def format_p(p: float) -> str:
    """Return a p-value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def headlines(comparisons: pd.DataFrame) -> pd.DataFrame:
    """Return one line per pair, dataset and norm: under the worst case, at the eps where they are easiest to compare.

    That is where the mean of both accuracies is nearest to one half; p stays corrected for all lines.
    """
    if comparisons.empty:
        return comparisons
    worst = comparisons["attack"] == WORST_CASE
    chosen = comparisons[worst] if worst.any() else comparisons
    half = (chosen["accuracy_first"] + chosen["accuracy_second"] - 1).abs()
    pairs = chosen.assign(half=half).sort_values("half", kind="stable")
    return pairs.drop_duplicates(["suite", "data", "norm", "unit", "first", "second"]).drop(columns="half").sort_index()


def comparison_sentences(comparisons: pd.DataFrame) -> list[str]:
    """Return a sentence per comparison: which model is significantly more robust, or that neither is."""
    sentences = []
    for line in comparisons.to_dict("records"):
        order = ("first", "second") if line["accuracy_first"] >= line["accuracy_second"] else ("second", "first")
        better, worse = (line[name] for name in order)
        shares = " vs ".join(f"{100 * line[f'accuracy_{name}']:.1f} %" for name in order)
        setting = f"under {line['attack']} at eps {line['eps']:g} ({line['norm']}) on {line['data']}"
        numbers = f"{shares}, {format_p(line['p'])} (McNemar, Holm), n = {line['n']}"
        if line["p"] < ALPHA:
            sentences.append(f"{better} is significantly more robust than {worse} {setting}: {numbers}.")
        else:
            sentences.append(f"No significant difference between {better} and {worse} {setting}: {numbers}.")
    return sentences
