from __future__ import annotations

import pandas as pd
import pytest

from robustcaps.analysis.tables.summary import (
    SUMMARISED,
    count_violations,
    goal_grid,
    summarise,
    summary_grids,
    with_worst_case,
)
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import grids_markdown
from robustcaps.utils.statistics import wilson
from tests.rows import attacked, rows, sweep


def test_accuracy_success_interval_and_cost():
    frame = rows(index=range(4), label=[0, 1, 2, 0], adv_pred=[0, 2, 2, 1], fooled=[False, True, False, True])
    line = summarise(frame).iloc[0]
    low, high = wilson(2, 4)
    assert (line["n"], line["accuracy"], line["success"], line["invalid"]) == (4, 0.5, 0.5, 0)
    assert (line["accuracy_low"], line["accuracy_high"]) == pytest.approx((float(low), float(high)))
    assert (line["forwards"], line["backwards"], line["queries"]) == (2, 1, 2)


def test_several_targets_of_a_sample_count_once():
    frame = rows(
        index=[0, 0, 1, 1],
        label=[0, 0, 1, 1],
        target=[0, 1, 0, 1],
        adv_pred=[0, 1, 0, 1],
        fooled=[True] * 4,
        goal="targeted",
    )
    line = summarise(frame).iloc[0]
    assert (line["n"], line["success"], line["accuracy"], line["forwards"]) == (2, 1, 0.5, 4)
    assert line["success_low"] == pytest.approx(float(wilson(2, 2)[0]))


def test_markdown_has_a_row_per_curve_and_a_column_per_eps():
    lines = goal_grid(sweep("untargeted"), "untargeted").markdown().splitlines()
    assert lines[0] == "| model | attack | 0 | 0.1 | 0.2 |"
    assert lines[2] == "| cnn | a | 50.0 (9-91) | 50.0 (9-91) | 50.0 (9-91) |"
    assert len(lines) == 4


def test_a_rate_that_rests_on_invalid_rows_is_marked():
    table = summarise(attacked("a", 0.1, [False] * 4, valid=[True, True, True, False]))
    grid = goal_grid(table, "untargeted")
    assert "100.0 † (" in grid.markdown() and "† some rows are invalid and count as not fooled." in grid.markdown()
    assert "100.0 \\dag{}" in grid.latex()
    assert "†" not in goal_grid(sweep("untargeted"), "untargeted").markdown()


def test_markdown_keeps_norms_apart():
    both = pd.concat([sweep("untargeted"), sweep("untargeted").assign(norm="l2", accuracy=0.1)])
    lines = goal_grid(both, "untargeted").markdown().splitlines()
    assert lines[0].startswith("| model | attack | norm | 0 |") and len(lines) == 6
    assert sum("10.0" in line for line in lines) == 2


def test_markdown_names_the_dataset_where_there_are_several():
    both = pd.concat([sweep("untargeted"), sweep("untargeted").assign(data="e")])
    lines = goal_grid(both, "untargeted").markdown().splitlines()
    assert lines[0] == "| data | model | attack | 0 | 0.1 | 0.2 |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| d", "| d", "| e", "| e"]


def test_a_page_has_a_table_per_dataset_norm_and_goal():
    parts = [sweep("untargeted"), sweep("targeted"), sweep("untargeted").assign(data="e", norm="l2", eps=0.5)]
    lines = grids_markdown(summary_grids(pd.concat(parts))).splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        "d: accuracy under attack in % (n = 2, Wilson 95 %), by eps (linf, pixel):",
        "d: success of targeted attacks in % (n = 2, Wilson 95 %), by eps (linf, pixel):",
        "e: accuracy under attack in % (n = 2, Wilson 95 %), by eps (l2, pixel):",
    ]
    assert [line for line in lines if line.startswith("| model")] == [
        "| model | attack | 0 | 0.1 | 0.2 |",
        "| model | attack | 0 | 0.1 | 0.2 |",
        "| model | attack | 0.5 |",
    ]


def test_names_with_bars_do_not_break_tables():
    page = goal_grid(sweep("untargeted").replace("cnn", "a|b"), "untargeted").markdown()
    assert "| a\\|b | a | 50.0" in page


def test_order_is_kept_and_violations_are_counted():
    frame = pd.concat(
        [
            rows(index=[0], label=[0], adv_pred=[0], fooled=[False], model="z"),
            rows(index=[0], label=[0], adv_pred=[0], fooled=[False], model="a", valid=False, violation="outside-box"),
        ]
    )
    assert summarise(frame)["model"].tolist() == ["z", "a"]
    assert count_violations(frame).to_dict("records") == [
        {
            "model": "a",
            "attack": "a",
            "violation": "outside-box",
            "rows": 1,
            "sentence": "returned an image with pixels below 0 or above 1",
        }
    ]
    with pytest.raises(ValueError, match="no rows"):
        summarise(frame.iloc[:0])


def test_the_worst_case_is_per_sample_over_attacks_and_smaller_eps():
    frame = pd.concat(
        [
            attacked("one", 0.1, [True, False, False, True]),
            attacked("one", 0.2, [False, False, False, True]),
            attacked("two", 0.2, [False, True, False, True]),
            attacked("clean", 0.0, [False, False, False, True]),
        ]
    )
    table = summarise(with_worst_case(frame)).set_index(["attack", "eps"])
    assert table.loc[WORST_CASE, "accuracy"].to_dict() == {0.1: 0.5, 0.2: 0.25}
    assert table.loc[WORST_CASE, "forwards"].sum() == 6  # what the three rows of a sample cost
    assert table.loc[(WORST_CASE, 0.2), "success"] == 0.75


def test_one_attack_has_no_worst_case():
    frame = attacked("one", 0.1, [True] * 4)
    found = with_worst_case(frame)
    assert found.equals(frame[found.columns]) and set(SUMMARISED) == set(found.columns)


def test_invalid_rows_are_no_worst_case():
    cheat = attacked("cheat", 0.1, [False, False, False, True], valid=False, violation="outside-ball")
    table = summarise(with_worst_case(pd.concat([cheat, attacked("one", 0.1, [False, False, False, True])])))
    assert table.set_index("attack").loc[WORST_CASE, "accuracy"] == 0.75


def test_the_worst_case_of_targeted_attacks_counts_who_is_mistaken_too():
    kind = {"goal": "targeted", "target": 2}
    frame = pd.concat([attacked(name, 0.1, [False] * 4, **kind).assign(adv_pred=[0, 1, 1, 1]) for name in ("a", "b")])
    line = summarise(with_worst_case(frame)).set_index("attack").loc[WORST_CASE]
    assert (line["success"], line["accuracy"]) == (0, 0.25)
