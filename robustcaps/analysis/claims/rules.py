"""Rules that judge claims: functions of the lines of one dataset in a suite's table.

A rule returns None where the table has not the models or attacks that the claim is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import Any

import pandas as pd

from robustcaps.analysis.claims.evidence import (
    NOTICEABLE,
    Agreement,
    ClaimComparison,
    Estimate,
    Judgement,
    Line,
    count_signs,
    finding_of,
    judge_comparisons,
    noticeable,
    paired_difference,
)
from robustcaps.analysis.tables.comparisons import ALPHA
from robustcaps.analysis.tables.perturbation_norms import larger_side
from robustcaps.utils.grid import format_p
from robustcaps.utils.statistics import holm, mcnemar

Where = Mapping[str, str]
"""Which lines of a table: what their columns say."""
BUDGET = ("norm", "unit", "eps")
HALF = 50.0
NEAR_CHANCE = 2.0
"""Success is near chance as long as it is less than so many times chance."""
ORDERS = (1.0, 3.0)
SLACK = 0.25
"""'About two orders of magnitude' is between these; near a bound it is undecided, since medians have no interval."""
ALIKE = 0.05
"""Published means that differ by a smaller part say that two networks are about equal."""
CLOSE = 0.1
"""Ours are about equal if the whole interval of their difference is a smaller part than this."""


def select(table: pd.DataFrame, where: Where) -> list[dict[Any, Any]]:
    """Return the lines of a table whose columns say this, those of a sweep without its eps of 0."""
    lines = table[(table[list(where)] == pd.Series(where)).all(axis=1)]
    return (lines[lines["eps"] > 0] if "eps" in lines else lines).to_dict("records")


def _pairs(table: pd.DataFrame, first: Where, second: Where) -> list[tuple[Line, Line]]:
    """Return the lines of two kinds that have the same budget."""
    keys = [name for name in BUDGET if name in table]
    others = select(table, second)
    return [(a, b) for a in select(table, first) for b in others if all(a[key] == b[key] for key in keys)]


def larger(
    table: pd.DataFrame,
    *,
    share: str,
    more: Where,
    less: Where,
    what: str,
    names: tuple[str, str],
    scale: float = 100.0,
) -> Judgement | None:
    """Judge that a share is larger in one kind of lines than in another at equal eps: intervals do not overlap."""
    comparisons = []
    for a, b in _pairs(table, more, less):
        first, second = (Estimate.read(line, share, scale) for line in (a, b))
        n = int(a["n"] if "n" in a else a["n_test"])
        comparisons.append(ClaimComparison(names, first, second, first.above(second), n, a.get("eps")))
    return judge_comparisons(comparisons, what, "intervals")


def _paired_comparisons(table: pd.DataFrame, mine: str, rival: str) -> list[tuple[ClaimComparison, Estimate]]:
    """Return, for each eps of a table of comparisons, who keeps more accuracy by McNemar, and by how much.

    p is corrected by Holm for the eps of this claim alone: what else a suite compares says nothing about it.
    """
    lines = [
        line for line in table[table["eps"] > 0].to_dict("records") if {line["first"], line["second"]} == {mine, rival}
    ]
    corrected = holm(mcnemar(*([line[f"only_{side}"] for line in lines] for side in ("first", "second"))))
    pairs = []
    for line, p in zip(lines, corrected, strict=True):
        sides = ("first", "second") if line["first"] == mine else ("second", "first")
        first, second = (Estimate.share(line[f"accuracy_{side}"], line["n"]) for side in sides)
        only_mine, only_rival = (line[f"only_{side}"] for side in sides)
        gain = paired_difference(only_mine, only_rival, line["n"])
        sign = 0 if p >= ALPHA else 1 if gain.value > 0 else -1
        comparison = ClaimComparison((mine, rival), first, second, sign, line["n"], line["eps"], f", {format_p(p)}")
        pairs.append((comparison, gain))
    return pairs


def _under(table: pd.DataFrame, attack: str) -> pd.DataFrame:
    """Return the comparisons of models under attacks named so (a pattern)."""
    return table[table["attack"].str.fullmatch(attack)]


def more_robust(table: pd.DataFrame, *, attack: str, mine: str, rival: str) -> Judgement | None:
    """Judge that a model keeps noticeably more accuracy than a rival at some eps, and significantly less at none.

    It differs if every interval excludes a noticeable advantage, or if only disadvantages are significant.
    """
    pairs = _paired_comparisons(_under(table, attack), mine, rival)
    if not pairs:
        return None
    signs = [comparison.sign for comparison, _ in pairs]
    better, worse = noticeable([gain for _, gain in pairs], [sign > 0 for sign in signs]), -1 in signs
    finding: Agreement = "undecided"
    if better is False or (worse and 1 not in signs):
        finding = "differs"
    elif better and not worse:
        finding = "agrees"
    comparison, gain = max(pairs, key=lambda pair: (abs(pair[0].sign), abs(pair[1].value)))
    return Judgement(finding, f"accuracy {comparison}, advantage {gain.points}{count_signs(signs, 'test')}")


def larger_auc(table: pd.DataFrame, *, mine: str, rival: str) -> Judgement | None:
    """Judge that a group of networks has a larger robust AUC than another: the difference's interval excludes 0."""
    compared = _auc_advantage(table, mine, rival)
    if compared is None:
        return None
    advantage, evidence = compared
    return Judgement(finding_of([advantage.above(Estimate(0.0, 0.0, 0.0))]), evidence)


def not_larger_auc(table: pd.DataFrame, *, mine: str, rival: str) -> Judgement | None:
    """Judge that a group of networks has no noticeable advantage in robust AUC over another."""
    compared = _auc_advantage(table, mine, rival)
    if compared is None:
        return None
    advantage, evidence = compared
    better = noticeable([advantage], [advantage.low > 0])
    finding: Agreement = "undecided" if better is None else "differs" if better else "agrees"
    return Judgement(finding, evidence)


def _auc_advantage(table: pd.DataFrame, mine: str, rival: str) -> tuple[Estimate, str] | None:
    """Return by how much the robust AUC of one group exceeds that of another, and the figures.

    The interval covers other samples and other seeds of the training.
    """
    lines = {line["group"]: line for line in table.to_dict("records")}
    if mine not in lines or rival not in lines:
        return None
    own, other = lines[mine], lines[rival]
    first, second = (Estimate.read(line, "auc") for line in (own, other))
    advantage = Estimate.read(own, "difference") if own["reference"] == rival else first - second
    routing = f"; routing of {mine}: {own['routing']}" if isinstance(own["routing"], str) else ""
    size = f"n = {own['n']}, {own['models']} trainings each{routing}"
    return advantage, f"robust AUC: {mine} {first}, {rival} {second}, advantage {advantage.points}, {size}"


def fools_more(table: pd.DataFrame, *, model: str, attack: str, rival: str) -> Judgement | None:
    """Judge that an attack leaves a model less accuracy than a rival with the same budget: by McNemar's test."""
    pairs = _paired_comparisons(table[table["model"] == model], rival, attack)
    return judge_comparisons([comparison for comparison, _ in pairs], "accuracy left", "test")


def not_better(table: pd.DataFrame, *, attack: str, mine: str, rivals: Sequence[str]) -> Judgement | None:
    """Judge that a model has no noticeable advantage over a rival, the first of these that there is."""
    found = [pairs for rival in rivals if (pairs := _paired_comparisons(_under(table, attack), mine, rival))]
    if not found:
        return None
    better = noticeable([gain for _, gain in found[0]], [comparison.sign > 0 for comparison, _ in found[0]])
    comparison, gain = max(found[0], key=lambda pair: (pair[0].sign, pair[1].low))
    finding: Agreement = "undecided" if better is None else "differs" if better else "agrees"
    return Judgement(finding, f"accuracy {comparison}; advantage {gain.points}, the clearest of {len(found[0])} eps")


def steered(table: pd.DataFrame, *, attack: str, mine: str, rival: str) -> Judgement | None:
    """Judge that targeted success stays near chance on a model, at every eps, while on a rival it rises at some.

    Chance is the success at eps 0: with every class a target, the true one too, one in the number of classes.
    """
    lines = table[(table["attack"] == attack) & (table["goal"] == "targeted")]
    chance = 100 * float(lines.loc[lines["eps"] == 0, "success"].mean())
    ours, theirs = (select(lines, {"model": model}) for model in (mine, rival))
    if not ours or not theirs or pd.isna(chance):
        return None
    limit = NEAR_CHANCE * chance
    own, other = ([Estimate.read(line, "success") for line in part] for part in (ours, theirs))
    stays = all(each.high < limit for each in own)
    finding: Agreement = "undecided"
    if stays and any(each.low > limit for each in other):
        finding = "agrees"
    elif any(each.low > limit for each in own) or all(each.high < limit for each in other):
        finding = "differs"
    figures = ", ".join(f"{model} {_highest(part)}" for model, part in ((mine, ours), (rival, theirs)))
    return Judgement(finding, f"highest success: {figures}; chance {chance:.1f} %, n = {ours[0]['n']}")


def _highest(lines: Sequence[Line]) -> str:
    line = max(lines, key=lambda each: float(each["success"]))
    return f"{Estimate.read(line, 'success')} at eps {line['eps']:g}"


def fewer_zeros(table: pd.DataFrame, *, loss: str, mine: str, rival: str) -> Judgement | None:
    """Judge that fewer entries of a model's gradients are exactly zero than of a rival's."""
    own, other = (select(table, {"model": model, "loss": loss}) for model in (mine, rival))
    comparisons = []
    for a, b in zip(own, other, strict=False):
        first, second = (Estimate.share(line["zeros"], line["n"]) for line in (b, a))
        comparisons.append(ClaimComparison((rival, mine), first, second, first.above(second), a["n"]))
    return judge_comparisons(comparisons, "exact zeros:", "intervals")


def orders_smaller(table: pd.DataFrame, *, loss: str, mine: str, rival: str) -> Judgement | None:
    """Judge that a model's gradients are about two orders of magnitude smaller than a rival's, by median norm."""
    own, other = (select(table, {"model": model, "loss": loss}) for model in (mine, rival))
    if not own or not other:
        return None
    sizes = [float(lines[0]["log10_l2"]) for lines in (other, own)]
    orders = sizes[0] - sizes[1]
    inside = min(orders - ORDERS[0], ORDERS[1] - orders)  # NaN, of two without gradients, is neither
    finding = finding_of([1 if inside >= SLACK else -1 if inside <= -SLACK else 0])
    none = 100 * own[0]["none"]
    apart = f"{abs(orders):.1f} orders {'larger' if orders < 0 else 'smaller'}"
    if not isfinite(orders):
        apart = "nothing to compare" if isnan(orders) else f"{rival if orders < 0 else mine} has none in the median"
    orders_text = f"{apart} (log10 of the median norm: {mine} {sizes[1]:.1f}, {rival} {sizes[0]:.1f})"
    return Judgement(finding, f"{orders_text}, no gradient at all for {none:.1f} % of the images, n = {own[0]['n']}")


def costs_less(table: pd.DataFrame, *, by: str, mine: str, rival: str) -> Judgement | None:
    """Judge that novel views add less to a model's error than to a rival's; undecided if familiar errors differ."""
    own, other = (select(table, {"by": by, "model": model, "source": "measured"}) for model in (mine, rival))
    if not own or not other:
        return None
    familiar, novel = ([Estimate.read(lines[0], name) for lines in (own, other)] for name in ("familiar", "novel"))
    costs = [after - before for after, before in zip(novel, familiar, strict=True)]
    equal = familiar[0].above(familiar[1]) == 0
    each = ", ".join(
        f"{model} {cost.points} on top of {before}"
        for model, cost, before in zip((mine, rival), costs, familiar, strict=True)
    )
    n = f"n = {own[0]['n_familiar']:.0f} familiar, {own[0]['n_novel']:.0f} novel"
    note = "" if equal else "; familiar errors differ, so the costs do not compare"
    return Judgement(finding_of([costs[1].above(costs[0]) if equal else 0]), f"{each}, {n}{note}")


def sizes_as_published(
    table: pd.DataFrame, *, attack: str, mine: str, rival: str, published: tuple[float, float]
) -> Judgement | None:
    """Judge who needs the larger perturbations in the mean, or that both need about equal ones, as a paper has it.

    `published` are the means of the model and its rival. Compared are the samples that were fooled with both.
    """
    lines = select(table, {"attack": attack, "norm": "l2"})
    for line in (line for line in lines if {line["first"], line["second"]} == {mine, rival}):
        sides = ("first", "second") if line["first"] == mine else ("second", "first")
        apart = Estimate(*(float(line[name]) for name in ("difference", "low", "high")))
        larger = larger_side(line)
        apart, sign = (apart, larger) if line["first"] == mine else (-apart, -larger)
        complete = line["found_first"] == line["found_second"]
        claimed = published_order(published)
        finding = finding_of([sign * claimed]) if claimed else _equal(apart, line[f"mean_{sides[1]}"], sign, complete)
        figures = ", ".join(
            f"{line[side]} {line[f'mean_{side}']:.3g} ({100 * line[f'found_{side}']:.0f} % fooled)" for side in sides
        )
        difference = f"difference {apart.value:.2g} ({apart.low:.2g} to {apart.high:.2g})"
        return Judgement(finding, f"mean L2: {figures}, {difference}, n = {line['n']} of {line['of']}")
    return None


def published_order(published: tuple[float, float]) -> int:
    """Return 1 if the first of two published means is the larger, -1 if the second is, 0 if they are about equal."""
    part = published[0] / published[1] - 1
    return 0 if abs(part) < ALIKE else 1 if part > 0 else -1


def _equal(apart: Estimate, mean: float, sign: int, complete: bool) -> Agreement:
    """Judge that two means are about equal; undecided at best where one was fooled on fewer samples."""
    if complete and max(-apart.low, apart.high) < CLOSE * mean:
        return "agrees"
    return "differs" if sign else "undecided"


def most_flagged(table: pd.DataFrame, *, attack: str, model: str) -> Judgement | None:
    """Judge that most images that fool a model are flagged: more than half at some eps, fewer at none."""
    lines = [line for line in select(table, {"attack": attack, "model": model}) if not pd.isna(line["detected"])]
    if not lines:
        return None
    shares = [Estimate.read(line, "detected") for line in lines]
    signs = [share.above(Estimate(HALF, HALF, HALF)) for share in shares]
    labelled = [(share.value, f"{share} at eps {line['eps']:g}") for share, line in zip(shares, lines, strict=True)]
    ends = " to ".join(dict.fromkeys(words for _, words in (min(labelled), max(labelled))))
    counts = f"n = {lines[0]['n']} attacked{count_signs(signs, 'intervals', ' than half')}"
    return Judgement(finding_of(signs), f"flagged of those that fool: {ends}, {counts}")


def masked(table: pd.DataFrame, *, model: str, diagnostic: str) -> Judgement | None:
    """Judge that a robust accuracy is noticeably too high: that of the baseline attack minus what all remedies leave.

    Every sample that survives all remedies survives the baseline attack, so their difference is a share of the samples.
    Where the baseline attack leaves little robust accuracy, nothing can be judged.
    """
    lines = [line for line in select(table, {"model": model, "diagnostic": diagnostic}) if not pd.isna(line["naive"])]
    if not lines:
        return None
    taken = [Estimate.share(max(0.0, line["naive"] - line["corrected"]), line["n"]) for line in lines]
    hidden = noticeable(taken, [True] * len(lines))
    robust = any(Estimate.read(line, "naive").low > NOTICEABLE for line in lines)
    finding: Agreement = "agrees" if hidden else "differs" if hidden is False and robust else "undecided"
    line, share = max(zip(lines, taken, strict=True), key=lambda each: each[1].low)
    naive, corrected = (Estimate.read(line, each) for each in ("naive", "corrected"))
    figures = f"naive {naive}, corrected {corrected}, taken away {share}"
    evidence = f"robust accuracy at eps {line['eps']:g}: {figures}, n = {line['n']}, verdict '{line['status']}'"
    return Judgement(finding, evidence)
