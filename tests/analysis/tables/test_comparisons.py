from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from robustcaps.analysis.tables.comparisons import (
    compare_attacks,
    compare_models,
    comparison_grids,
)
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import grids_markdown
from robustcaps.utils.statistics import holm, mcnemar


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(b, c):
    expected = binomtest(b, b + c).pvalue if b + c else 1.0
    assert float(mcnemar(b, c)) == pytest.approx(expected)


def test_holm_is_that_of_the_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]).tolist() == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_corrected_p_is_never_smaller_and_keeps_its_place(p):
    corrected = holm(p)
    assert (corrected >= np.array(p) - 1e-12).all() and (corrected <= 1).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(corrected[order]) >= 0).all()


def rows(model, right, eps=0.1, seed=0):
    n = len(right)
    names = {"suite": "s", "data": "d", "attack": "bim", "goal": "untargeted", "norm": "linf", "unit": "pixel"}
    values = {"label": 0, "adv_pred": [0 if ok else 1 for ok in right], "index": range(n)}
    return pd.DataFrame({"model": [model] * n, **names, "eps": eps, "seed": seed, **values})


def test_pairs_are_compared_on_the_samples_they_share():
    frame = pd.concat([rows("caps", [True] * 30), rows("cnn", [True] * 10 + [False] * 25)])
    (line,) = compare_models(frame).to_dict("records")
    assert (line["n"], line["only_first"], line["only_second"]) == (30, 20, 0)
    assert line["p"] == pytest.approx(2 * 0.5**20)


def test_a_sample_is_right_only_with_every_seed_and_many_comparisons_cost():
    same = [rows("a", [True] * 8), rows("a", [True] * 4 + [False] * 4, seed=1), rows("b", [True] * 8)]
    once = compare_models(pd.concat(same))
    assert once.loc[0, "accuracy_first"] == 0.5 and once.loc[0, "p"] == pytest.approx(0.125)
    twice = compare_models(pd.concat([*same, *(frame.assign(eps=0.2) for frame in same)]))
    assert twice["p"].tolist() == pytest.approx([0.25, 0.25])


def test_attacks_are_compared_on_the_same_model_at_the_same_eps():
    vote, bim = rows("caps", [False] * 20 + [True] * 10), rows("caps", [False] * 5 + [True] * 25)
    parts = [vote.assign(attack="vote"), bim, bim.assign(attack=WORST_CASE), bim.assign(eps=0.2), rows("cnn", [True])]
    (line,) = compare_attacks(pd.concat(parts)).to_dict("records")
    assert (line["model"], line["first"], line["second"], line["eps"]) == ("caps", "vote", "bim", 0.1)
    assert (line["n"], line["only_first"], line["only_second"]) == (30, 0, 15)
    page = grids_markdown(comparison_grids(compare_attacks(pd.concat(parts))))
    assert page.splitlines()[2] == "| d | caps | 0.1 linf | vote | bim | 33.3 | 83.3 | 30 | **p < 0.001** |"


def test_an_attack_does_not_win_by_trying_more_often():
    once = rows("caps", [True] * 20)
    tries = [rows("caps", [place % 3 != seed for place in range(20)], seed=seed) for seed in range(3)]
    often = pd.concat(tries).assign(attack="pgd")
    (line,) = compare_attacks(pd.concat([once, often])).to_dict("records")
    assert (line["accuracy_first"], line["accuracy_second"]) == (1.0, 0.65)  # with the seed that both have
    assert compare_attacks(pd.concat([once.assign(seed=7), often])).empty


def test_one_model_alone_is_compared_with_nobody():
    assert compare_models(rows("a", [True])).empty
