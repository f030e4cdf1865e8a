from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from robustcaps.analysis.figures.robust_auc import draw_auc
from robustcaps.analysis.tables.attack_tables import AttackRows
from robustcaps.analysis.tables.robust_auc import auc_grids, auc_sentences, tabulate_auc, without_groups
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import grids_markdown

EPS = (0.1, 0.2)


def rows(model, right, *, attack=WORST_CASE, eps=EPS):
    """Return rows of a model that classifies the samples correctly up to `right` of the eps."""
    names = {"suite": "s", "data": "d", "attack": attack, "goal": "untargeted", "norm": "linf", "unit": "pixel"}
    return pd.DataFrame(
        {"model": model, **names, "eps": radius, "seed": 0, "index": index, "label": 0, "adv_pred": int(place >= count)}
        for index, count in enumerate(right)
        for place, radius in enumerate(eps)
    )


def model(group, seed, status="alive"):
    record = {"label": f"{group}, seed {seed}", "data": "d", "accuracy": 0.9, "group": group}
    return record | {"routing": {"status": status} if status else None}


MODELS = [model("plain", 0, None), model("plain", 1, None), model("em", 0), model("em", 1, "soft")]
RUN = pd.concat(
    [
        rows("plain, seed 0", [0] * 30 + [1] * 10),
        rows("plain, seed 1", [0] * 32 + [1] * 8),
        rows("em, seed 0", [2] * 30 + [1] * 10),
        rows("em, seed 1", [2] * 28 + [1] * 12),
    ]
)


def test_auc_is_the_mean_over_eps_samples_and_models():
    plain, em = tabulate_auc(RUN, MODELS).to_dict("records")
    assert (plain["group"], plain["models"], plain["n"], plain["eps"]) == ("plain", 2, 40, "0.1 0.2")
    assert plain["auc"] == pytest.approx((10 + 8) / 160)
    assert (plain["auc_min"], plain["auc_max"]) == pytest.approx((8 / 80, 10 / 80))
    assert em["auc"] == pytest.approx((70 + 68) / 160)
    assert em["auc_low"] < em["auc"] < em["auc_high"]
    assert em["difference"] == pytest.approx(em["auc"] - plain["auc"])
    assert em["reference"] == "plain" and em["p"] < 0.05
    assert np.isnan(plain["p"]) and np.isnan(plain["routing"])
    assert em["routing"] == "1 alive, 1 soft"


def test_words():
    table = tabulate_auc(RUN, MODELS)
    (sentence,) = auc_sentences(table)
    assert sentence == (
        "d: against 'plain' (robust AUC 11.2 %, linf), more robust: em (86.2 %, difference +75.0, "
        "95 % CI 61.2 to 88.8) (p < 0.05, corrected by Holm)."
    )
    text = grids_markdown(auc_grids(table))
    assert "robust AUC in %, mean over eps 0.1 0.2 (linf, pixel), 40 samples" in text
    assert "| em | 2 | 1 alive, 1 soft | 90.0 | 86.2 (" in text and "against plain" in text


def test_equal_groups_do_not_differ():
    same = pd.concat(
        [rows(f"{group}, seed {seed}", [2] * 20 + [0] * 20) for group in ("plain", "em") for seed in (0, 1)]
    )
    table = tabulate_auc(same, MODELS)
    assert table["difference"].tolist()[1] == 0 and table["p"].tolist()[1] == 1
    assert "no significant difference: em" in auc_sentences(table)[0]


def test_only_the_worst_case_counts():
    weak = pd.concat([rows(record["label"], [2] * 40, attack="fgsm") for record in MODELS])
    both, alone = tabulate_auc(pd.concat([RUN, weak]), MODELS), tabulate_auc(RUN, MODELS)
    pd.testing.assert_frame_equal(both, alone)
    assert (tabulate_auc(weak, MODELS)["auc"] == 1).all()  # a single attack is the worst case


def test_groups_with_other_eps_are_not_compared():
    part = RUN[RUN["model"].str.startswith("plain")]
    other = pd.concat([rows(f"em, seed {seed}", [2] * 40, eps=(0.3, 0.4)) for seed in (0, 1)])
    assert tabulate_auc(pd.concat([part, other]), MODELS)["p"].isna().all()


def test_models_of_groups_are_compared_by_their_means_only():
    single = rows("cnn", [1] * 40)
    assert set(without_groups(pd.concat([RUN, single]), MODELS)["model"]) == {"cnn"}
    assert len(without_groups(RUN, [])) == len(RUN)
    assert tabulate_auc(RUN, []).empty


def test_figure_has_a_line_per_group():
    figure = draw_auc(AttackRows(RUN, MODELS).auc)
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["plain", "em"]
