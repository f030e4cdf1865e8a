"""Findings: at most five sentences, the most important first, each with its figures, interval and test."""

from __future__ import annotations

import pandas as pd
import pytest

from robustcaps.analysis.findings import MAX_FINDINGS, list_findings
from robustcaps.analysis.tables.attack_tables import ATTACK_TABLES, AttackRows
from robustcaps.diagnostics.kinds.base import all_kinds
from tests.analysis.tables.test_ranking import RUN, STRONG, WEAK, sweep
from tests.rows import found

TRANSFER = pd.concat(
    [
        sweep(model, limits, attack="from weak", eps=(0.2,), surrogate="weak")
        for model, limits in {"strong": STRONG, "weak": [-1.0] * 20, "twin": [0.1] * 19 + [0.2]}.items()
    ]
)
VERDICT = {"suite": "s", "data": "d", "norm": "linf", "eps": 0.1, "n": 50, "corrected_low": 0.01, "corrected_high": 0.1}
VERDICTS = pd.DataFrame(
    [
        {**VERDICT, "model": "weak", "diagnostic": "on logits", "status": "trusted", "naive": 0.5, "corrected": 0.5},
        {**VERDICT, "model": "weak", "diagnostic": "on votes", "status": "masked", "naive": 0.9, "corrected": 0.02},
        {**VERDICT, "model": "odd", "diagnostic": "on logits", "status": "masked", "naive": None, "corrected": None},
    ]
)
CHANGED = {"changed": 0.02, "changed_low": 0.01, "changed_high": 0.05}
ROUTING = {
    "routing": pd.DataFrame([{"data": "d", "model": "weak", "layer": "classes", "status": "inert"}]),
    "routing_interventions": pd.DataFrame(
        [{"data": "d", "model": "weak", "intervention": "uniform assignments", "n": 50, **CHANGED}]
    ),
}


def tables_of(*parts, **others):
    attacks = AttackRows(pd.concat(parts, ignore_index=True)) if parts else None
    empty = {table.name: pd.DataFrame() for kind in all_kinds() for table in kind.tables}
    of_attacks = {table.name: table.tabulate(attacks) if attacks else pd.DataFrame() for table in ATTACK_TABLES}
    return {**empty, **of_attacks, **others}


def test_a_whole_run_in_five_sentences():
    best, masking, routing, transfer, undecided = list_findings(tables_of(RUN, TRANSFER, verdicts=VERDICTS, **ROUTING))
    assert best.startswith("strong is the most robust on d (linf), with a robust AUC of 0.85: significantly above")
    assert "difference 0.65, 95 % CI 0." in best and "p < 0.05, paired t-test, Holm; n = 20" in best
    assert masking == (
        "Gradient masking: 1 trusted, 1 masked. Stronger attacks lower the robust accuracy of weak (on votes) most, at "
        "eps 0.1 (linf) on d: 90.0 % naive, 2.0 % corrected (95 % CI 1.0 to 10.0; p < 0.001, McNemar; n = 50)."
    )
    assert "weak (inert: 2.0 %, 95 % CI 1.0 to 5.0, n = 50)" in routing and "less than 5 % is inert" in routing
    assert transfer.startswith(
        "Adversarial examples crafted on weak transfer best to twin (fooled on 95.0 % of the samples, 95 % CI 76.4 to "
    )
    assert "worst to strong (fooled on 25.0 %" in transfer and "McNemar, Holm" in transfer
    assert undecided.startswith("No significant difference between ") and undecided.count("n = 20") == 1


def test_what_is_not_significant_is_one_line():
    twins = pd.concat([sweep(name, WEAK[place:] + WEAK[:place]) for place, name in enumerate("abcd")])
    (sentence,) = list_findings(tables_of(twins))
    assert sentence.startswith("No significant difference between ") and sentence.endswith(
        "; and 3 more (paired t-tests, p by Holm)."
    )
    assert "(robust AUC 0.20 vs 0.20, difference 0.00, 95 % CI -0." in sentence
    assert sentence.count("p = 1.000, n = 20)") == 3


def test_each_pair_names_its_threat_model_where_there_are_several():
    twins = pd.concat([sweep(name, WEAK) for name in "ab"])
    (sentence,) = list_findings(tables_of(twins, twins.assign(norm="affine", unit="degrees")))
    assert "a and b on d (linf) (robust AUC" in sentence and "a and b on d (affine) (robust AUC" in sentence


def test_there_are_never_more_than_five():
    parts = [RUN.assign(data=data) for data in "abcdefg"]
    sentences = list_findings(tables_of(*parts))
    assert len(sentences) == MAX_FINDINGS and "more robust" not in sentences[-1]
    assert [sentence.split(" on ")[1][0] for sentence in sentences[:-1]] == list("abcd")


@pytest.mark.parametrize("parts", [(), (sweep("alone", WEAK),)])
def test_nothing_to_compare_is_nothing_found(parts):
    assert list_findings(tables_of(*parts)) == []


def test_minimal_perturbations_are_compared_where_it_is_decided():
    small, large = [1.0, 1.1, 1.2, 1.3] * 5, [2.0, 2.3, 2.2, 2.1] * 5
    sentences = list_findings(tables_of(found(large, model="caps"), found(small, model="cnn")))
    assert any("caps needs larger perturbations than cnn on d (l2" in sentence for sentence in sentences)
    same = list_findings(tables_of(found(small, model="caps"), found(small[::-1], model="cnn")))
    assert not any("larger perturbations" in sentence for sentence in same)


def test_transfer_to_a_single_model_has_no_comparison():
    alone = tables_of(sweep("strong", STRONG, attack="from weak", eps=(0.2,), surrogate="weak"))
    assert any("transfer best to strong" in text and "worst" not in text for text in list_findings(alone))
    white_box = tables_of(sweep("weak", WEAK, attack="from weak", eps=(0.2,), surrogate="weak"))
    assert list_findings(white_box) == []
