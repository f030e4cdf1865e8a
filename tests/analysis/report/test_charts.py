from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.analysis.report.charts import (
    chart_cost,
    chart_curves,
    separating_eps,
    spread,
    tabulate_cost,
    tabulate_curves,
)
from robustcaps.analysis.tables.summary import summarise
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.chart_style import colour_scale, inline_data
from tests.rows import rows, sweep

CLEAN = pd.DataFrame(
    [{"data": "d", "model": model, "clean": 1.0, "clean_low": 0.5, "clean_high": 1.0} for model in ("cnn", "caps")]
)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_their_distance(values):
    placed = spread(values, 0.06, ties=values)
    order = np.argsort(values, kind="stable")
    assert np.all(np.diff(placed[order]) >= 0.06 - 1e-9)
    assert placed.min() >= -1e-9 and placed.max() <= 1 + 1e-9


def test_labels_of_equal_lines_are_ordered_by_their_means():
    assert np.argsort(spread([0.0, 0.0, 0.0], 0.1, ties=[0.3, 0.5, 0.4])).tolist() == [0, 2, 1]


def test_curves_of_accuracy_begin_with_the_clean_accuracy():
    table = sweep("untargeted")
    curves = tabulate_curves(table, "untargeted", CLEAN, {"a": "ce"})
    assert curves.groupby("model", sort=False)["eps"].agg(list).to_dict() == {
        "cnn": [0.0, 0.1, 0.2],
        "caps": [0.0, 0.1, 0.2],
    }
    assert set(curves["loss"]) == {"ce"} and set(curves["threat"]) == {"d, linf"}
    assert curves.loc[curves["eps"] == 0, "rate"].eq(1.0).all()
    assert tabulate_curves(table, "targeted", CLEAN, {}).empty


def test_an_attack_at_one_eps_is_no_curve():
    table = summarise(rows(index=[0, 1], label=[0, 1], adv_pred=[0, 0], fooled=[False, True]))
    assert tabulate_curves(table, "untargeted", CLEAN, {}).empty


@pytest.mark.parametrize("name", ["plain", 'it\'s <b>\\ "quoted"', "', alert(1), '"])
def test_charts_compile_whatever_the_names_are(name):
    table = sweep("untargeted").replace({"model": {"cnn": name}})
    curves = tabulate_curves(table, "untargeted", CLEAN.replace({"cnn": name}), {"a": "ce"})
    chart = chart_curves(curves, line="model", fixed="attack", measure="accuracy")
    assert name in json.dumps(chart.to_dict(), ensure_ascii=False) or json.dumps(name)[1:-1] in json.dumps(
        chart.to_dict()
    )
    assert name.partition("<")[0].strip() in vl_convert.vegalite_to_svg(chart.to_dict()).replace("&apos;", "'")


def test_the_cost_of_a_sweep_is_its_passes_at_the_eps_that_tells_models_apart():
    costs = tabulate_cost(sweep("untargeted"))
    assert costs["model"].tolist() == ["cnn", "caps"] and len(set(costs["eps"])) == 1
    assert costs["passes"].tolist() == [6.0, 6.0]
    assert "shown" in {parameter["name"] for parameter in chart_cost(costs).to_dict()["params"]}


def test_the_separating_eps_is_where_the_mean_is_nearest_to_a_half():
    lines = pd.DataFrame({"eps": [0.1, 0.2, 0.3], "attack": "a", "accuracy": [0.9, 0.55, 0.1]})
    assert separating_eps(lines) == 0.2


def test_what_is_not_finite_is_null_and_numbers_are_short():
    data = inline_data(pd.DataFrame({"a": [1 / 3, np.nan, np.inf], "b": ["x", "y", "z"], "n": [1, 2, 3]}))
    assert data["values"] == [
        {"a": 0.3333, "b": "x", "n": 1},
        {"a": None, "b": "y", "n": 2},
        {"a": None, "b": "z", "n": 3},
    ]


def test_the_worst_case_has_the_colour_of_text():
    scale = colour_scale(["fgsm", WORST_CASE], strong=WORST_CASE)
    assert scale.range[1] == "var(--ink)" and scale.range[0].startswith("#")
