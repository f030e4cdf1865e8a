"""The ranking of models by robust AUC, and their differences on the same samples."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from robustcaps.analysis.tables.attack_tables import AttackRows
from robustcaps.analysis.tables.ranking import (
    compare_auc,
    difference_grids,
    ranking_grids,
    with_statuses,
)
from robustcaps.utils.grid import grids_markdown
from robustcaps.utils.statistics import bootstrap_means, percentile_interval
from tests.rows import rows

EPS = (0.0, 0.1, 0.2)


def sweep(model, withstood, *, attack="fgsm", eps=EPS, **more):
    """Rows of a model whose samples are right as long as eps is at most their entry of `withstood`."""
    parts = []
    for radius in eps:
        wrong = [radius > limit for limit in withstood]
        columns = {"index": range(len(wrong)), "label": 0, "adv_pred": [int(hit) for hit in wrong], "fooled": wrong}
        clean = [int(limit < 0) for limit in withstood]
        parts.append(rows(**columns, clean_pred=clean, model=model, attack=attack, eps=radius, **more))
    return pd.concat(parts, ignore_index=True)


WEAK = [-1.0] * 2 + [0.0] * 10 + [0.1] * 8
STRONG = [-1.0] + [0.1] * 4 + [0.2] * 15
RUN = pd.concat([sweep("weak", WEAK), sweep("strong", STRONG), sweep("twin", WEAK[::-1])], ignore_index=True)


def test_models_are_ranked_by_the_mean_over_eps():
    table = AttackRows(RUN, [{"label": "weak", "data": "d", "parameters": 7}]).ranking.set_index("model")
    assert list(table.index) == ["strong", "weak", "twin"]
    strong = table.loc["strong"]
    assert strong["auc"] == pytest.approx((19 + 15) / 40) and strong["n"] == 20
    assert strong["auc_low"] < strong["auc"] < strong["auc_high"]
    assert (strong["clean"], strong["eps"], strong["shown_eps"]) == (0.95, "0.1 0.2", 0.1)
    assert strong["robust"] == 0.95 and strong["robust_low"] < 0.95 < strong["robust_high"]
    assert table.loc["weak", "parameters"] == 7 and np.isnan(table.loc["strong", "parameters"])


def test_the_worst_case_over_attacks_counts_and_targeted_ones_do_not():
    harmless = pd.concat([sweep(model, [0.2] * 20, attack="noise") for model in ("weak", "strong", "twin")])
    targeted = sweep("weak", [-1.0] * 20, goal="targeted", attack="to 1", target=1)
    mixed = AttackRows(pd.concat([RUN, harmless], ignore_index=True)).ranking
    alone = AttackRows(RUN).ranking
    assert mixed["auc"].tolist() == pytest.approx(alone["auc"].tolist())
    assert AttackRows(pd.concat([RUN, targeted], ignore_index=True)).ranking["auc"].equals(alone["auc"])


def test_the_grid_is_what_all_models_share():
    more = pd.concat([RUN, sweep("weak", WEAK, eps=(0.3,))], ignore_index=True)
    assert AttackRows(more).ranking["auc"].equals(AttackRows(RUN).ranking["auc"])
    apart = pd.concat([sweep("weak", WEAK, eps=(0.1,)), sweep("strong", STRONG, eps=(0.2,))])
    assert AttackRows(apart).ranking.empty and compare_auc(apart, []).empty


def test_differences_are_paired():
    table = compare_auc(RUN, [])
    pairs = table.set_index(["first", "second"])
    assert list(pairs.index) == [("strong", "weak"), ("strong", "twin"), ("weak", "twin")]
    beaten, twins = pairs.loc["strong", "weak"], pairs.loc["weak", "twin"]
    assert beaten["difference"] == pytest.approx(34 / 40 - 8 / 40) and beaten["p"] < 0.001
    assert beaten["difference_low"] < beaten["difference"] < beaten["difference_high"]
    assert twins["difference"] == 0 and twins["difference_low"] < 0 < twins["difference_high"]
    constant = pd.concat([sweep("a", STRONG), sweep("b", STRONG)])
    (same,) = compare_auc(constant, []).to_dict("records")
    assert (same["difference_low"], same["difference_high"], same["p"]) == (0, 0, 1)


def test_models_of_groups_are_left_to_the_table_of_groups():
    grouped = [{"label": "weak", "data": "d", "group": "g"}, {"label": "twin", "data": "d", "group": "g"}]
    assert compare_auc(RUN, grouped).empty


def test_of_many_models_only_pairs_with_the_best_are_compared():
    many = pd.concat([sweep(f"m{place}", WEAK) for place in range(21)] + [sweep("best", STRONG)])
    table = compare_auc(many, [])
    assert len(table) == 21 and set(table["first"]) == {"best"}


def test_resamples_are_those_of_the_textbook_and_paired():
    values = np.random.default_rng(1).random((2, 50))
    resampled = bootstrap_means(np.stack([values[0], values[1], values[0] - values[1]]))
    assert np.allclose(resampled[:, 0] - resampled[:, 1], resampled[:, 2])
    assert resampled[:, 0].std() == pytest.approx(values[0].std() / 50**0.5, rel=0.1)
    low, high = percentile_interval(resampled)
    assert (low < values.mean(axis=1)[0]).any() and np.all(low < high)


def test_pages():
    table = with_statuses(AttackRows(RUN).ranking, {"verdict": {("d", "weak"): "masked"}, "routing": {}})
    page = grids_markdown(ranking_grids(table))
    assert "| model | parameters | clean % | robust AUC % | robust % at eps 0.1 | verdict |" in page
    assert "| weak |  | 90.0 (70-97) | 20.0 (" in page and "| masked |" in page and "mean over eps 0.1, 0.2" in page
    assert "| d | linf | strong | weak | 85.0 | 20.0 | 65.0 (" in grids_markdown(difference_grids(compare_auc(RUN, [])))
