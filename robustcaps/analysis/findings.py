"""Findings: what a run says in at most five sentences, the most important first, from its tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pandas as pd

from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.analysis.tables.perturbation_norms import ANY_ATTACK, larger_side, norm_sentence
from robustcaps.analysis.tables.robust_auc import auc_sentences
from robustcaps.diagnostics.kinds.base import all_kinds
from robustcaps.utils.grid import format_p

Tables = Mapping[str, pd.DataFrame]
MAX_FINDINGS = 5
MAX_PAIRS = 3
"""So many pairs of models are named in a sentence."""
PAIR_SETTING = ["suite", "data", "norm", "unit"]


def list_findings(tables: Tables) -> list[str]:
    """Return who is most robust, what verdicts, transfer and routing say, and what is not significant.

    Each sentence has its figures, a 95 % interval, a test where there is one, and the number of samples.
    """
    first, *others = [*_most_robust(tables), *_larger_perturbations(tables)] or [""]
    of_kinds = [kind.finding(tables) for kind in all_kinds()]
    found = [sentence for sentence in (first, *of_kinds, _transfer(tables), *others) if sentence]
    undecided = _undecided(tables)
    return [*found[: MAX_FINDINGS - len(undecided)], *undecided]


def _most_robust(tables: Tables) -> list[str]:
    """Return a sentence per setting: the most robust model, and whom it beats; those of groups come first."""
    differences = tables["differences"]
    sentences = auc_sentences(tables["auc"]) if len(tables["auc"]) else []
    if differences.empty:
        return sentences
    for _, part in differences.groupby(PAIR_SETTING, sort=False):
        best = part.iloc[0]
        beaten = part[(part["first"] == best["first"]) & (part["p"] < ALPHA)]
        if beaten.empty:
            continue
        others = _listed([f"{line['second']} ({_auc_difference(line)})" for line in beaten.to_dict("records")])
        setting = f"on {best['data']} ({best['norm']})"
        sentences.append(
            f"{best['first']} is the most robust {setting}, with a robust AUC of {best['auc_first']:.2f}: "
            f"significantly above {others} (p < {ALPHA:g}, paired t-test, Holm; n = {best['n']})."
        )
    return sentences


def _auc_difference(line: Mapping[Any, Any]) -> str:
    interval = f"95 % CI {line['difference_low']:.2f} to {line['difference_high']:.2f}"
    return f"{line['auc_second']:.2f}, difference {line['difference']:.2f}, {interval}"


def _undecided(tables: Tables) -> list[str]:
    """Return one sentence with all pairs of models that do not differ significantly, the largest difference first."""
    differences = tables["differences"]
    if differences.empty:
        return []
    pairs = differences[differences["p"] >= ALPHA].sort_values("difference", ascending=False, kind="stable")
    several = len(differences[["data", "norm", "unit"]].drop_duplicates()) > 1
    texts = [
        f"{line['first']} and {line['second']} {_setting(line) if several else ''}"
        f"(robust AUC {line['auc_first']:.2f} vs {_auc_difference(line)}, {format_p(line['p'])}, n = {line['n']})"
        for line in pairs.to_dict("records")
    ]
    test = "(paired t-tests, p by Holm)"
    return [f"No significant difference between {_listed(texts, separator='; ')} {test}."] if texts else []


def _setting(line: Mapping[Any, Any]) -> str:
    return f"on {line['data']} ({line['norm']}) "


def _listed(texts: list[str], *, separator: str = ", ") -> str:
    """Return the first texts and how many more there are."""
    rest = len(texts) - MAX_PAIRS
    return separator.join(texts[:MAX_PAIRS]) + (f"{separator}and {rest} more" if rest > 0 else "")


def _transfer(tables: Tables) -> str:
    """Return on which model adversarial examples of a surrogate succeed most, and on which they succeed least."""
    matrix = tables["transfer"]
    if matrix.empty:
        return ""
    black_box = matrix[(matrix["goal"] == "untargeted") & (matrix["model"] != matrix["surrogate"])]
    if black_box.empty:
        return ""
    lines = black_box.to_dict("records")
    most = max(lines, key=itemgetter("success"))
    sweep = ("suite", "data", "attack", "norm", "unit", "surrogate", "eps")
    same = [line for line in lines if all(line[name] == most[name] for name in sweep)]
    least = min(same, key=itemgetter("success"))
    setting = f"{most['attack']} at eps {most['eps']:g} ({most['norm']}) on {most['data']}"
    opening = f"Adversarial examples crafted on {most['surrogate']} transfer best to {_fooled(most)}"
    if len(same) == 1:
        return f"{opening}; {setting}, n = {most['n']}."
    test = _transfer_test(tables["comparisons"], most, least)
    return f"{opening} and worst to {_fooled(least)}{test}; {setting}, n = {most['n']}."


def _fooled(line: Mapping[Any, Any]) -> str:
    interval = f"95 % CI {100 * line['success_low']:.1f} to {100 * line['success_high']:.1f}"
    return f"{line['model']} (fooled on {100 * line['success']:.1f} % of the samples, {interval})"


def _transfer_test(comparisons: pd.DataFrame, most: Mapping[Any, Any], least: Mapping[Any, Any]) -> str:
    """Return the McNemar test of two models under the same transferred images, '' if they were not compared."""
    pair = {most["model"], least["model"]}
    for line in comparisons.to_dict("records"):
        same = all(line[name] == most[name] for name in ("suite", "data", "attack", "norm", "unit", "eps"))
        if same and {line["first"], line["second"]} == pair:
            return f" ({format_p(line['p'])}, McNemar, Holm)"
    return ""


def _larger_perturbations(tables: Tables) -> list[str]:
    """Return the clearest comparison of minimal perturbations in each setting that has a decided one."""
    sizes = tables["sizes"]
    if sizes.empty:
        return []
    any_attack = sizes[sizes["attack"] == ANY_ATTACK]
    decided = any_attack[[larger_side(line) != 0 for line in any_attack.to_dict("records")]]
    order = decided["difference"].abs().sort_values(ascending=False, kind="stable").index
    clearest = decided.loc[order].drop_duplicates(PAIR_SETTING).sort_index()
    return [norm_sentence(line) for line in clearest.to_dict("records")]
