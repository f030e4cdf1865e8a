from __future__ import annotations

import pandas as pd
import pytest

from robustcaps.analysis.figures import draw_all, save
from robustcaps.analysis.figures.curves import draw_all_curves
from robustcaps.analysis.published import attack_curves
from robustcaps.analysis.tables.matrices import target_matrix, targets_markdown, transfer_markdown, transfer_matrix
from robustcaps.analysis.tables.summary import (
    WORST_CASE,
    markdown,
    summarise,
    table_markdown,
    violations,
    with_worst_case,
)
from robustcaps.utils.statistics import wilson
from tests.rows import attacked, rows


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
    lines = markdown(sweep("untargeted"), "untargeted").splitlines()
    assert lines[0] == "| data | model | attack | 0 | 0.1 | 0.2 |"
    assert lines[2] == "| d | cnn | a | 50.0 (9-91) | 50.0 (9-91) | 50.0 (9-91) |"
    assert len(lines) == 4


def test_markdown_keeps_norms_apart():
    both = pd.concat([sweep("untargeted"), sweep("untargeted").assign(norm="l2", accuracy=0.1)])
    lines = markdown(both, "untargeted").splitlines()
    assert lines[0].startswith("| data | model | attack | norm | 0 |") and len(lines) == 6
    assert sum("10.0" in line for line in lines) == 2


def test_a_page_has_a_table_per_dataset_norm_and_goal():
    parts = [sweep("untargeted"), sweep("targeted"), sweep("untargeted").assign(data="e", norm="l2", eps=0.5)]
    lines = table_markdown(pd.concat(parts)).splitlines()
    assert [line for line in lines if line.endswith(":")] == [
        "d: accuracy under attack in % (Wilson 95 %), by eps (linf, pixel):",
        "d: success of targeted attacks in % (Wilson 95 %), by eps (linf, pixel):",
        "e: accuracy under attack in % (Wilson 95 %), by eps (l2, pixel):",
    ]
    assert [line for line in lines if line.startswith("| data")] == [
        "| data | model | attack | 0 | 0.1 | 0.2 |",
        "| data | model | attack | 0 | 0.1 | 0.2 |",
        "| data | model | attack | 0.5 |",
    ]


def test_names_with_bars_do_not_break_tables():
    page = markdown(sweep("untargeted").replace("cnn", "a|b"), "untargeted")
    assert "| a\\|b | a | 50.0" in page


def test_figures_have_a_colour_for_every_model():
    many = pd.concat([sweep("untargeted").assign(model=f"m{k}") for k in range(12)])
    ((_, figure),) = draw_all_curves(many.assign(norm="l2"), published=True)
    assert len({line.get_color() for line in figure.axes[0].lines}) == 12  # and no published curve: they are linf


def test_order_is_kept_and_violations_are_counted():
    frame = pd.concat(
        [
            rows(index=[0], label=[0], adv_pred=[0], fooled=[False], model="z"),
            rows(index=[0], label=[0], adv_pred=[0], fooled=[False], model="a", valid=False, violation="outside-box"),
        ]
    )
    assert summarise(frame)["model"].tolist() == ["z", "a"]
    assert violations(frame).to_dict("records") == [
        {"model": "a", "attack": "a", "violation": "outside-box", "rows": 1}
    ]
    with pytest.raises(ValueError, match="no rows"):
        summarise(frame.iloc[:0])


def sweep(goal):
    parts = [
        rows(index=[0, 1], label=[0, 1], adv_pred=[0, 0], fooled=[False, True], eps=eps, model=model, goal=goal)
        for eps in (0.0, 0.1, 0.2)
        for model in ("cnn", "caps")
    ]
    return summarise(pd.concat(parts))


@pytest.mark.parametrize("published", [False, True])
def test_figures_show_every_curve_with_its_band(published):
    table = pd.concat([sweep("untargeted"), sweep("targeted")])
    figures = dict(draw_all_curves(table, published=published))
    assert list(figures) == ["accuracy", "targeted"]
    for figure in figures.values():
        axis = figure.axes[0]
        assert len(axis.collections) == 2  # bands
        assert len(axis.lines) == 2 + (4 if published else 0)
        assert axis.lines[0].get_xdata().tolist() == [0.0, 0.1, 0.2]
        assert axis.lines[0].get_ydata().tolist() == [0.5, 0.5, 0.5]
        assert "n = 2" in figure.get_suptitle()


def test_a_figure_is_always_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        ((_, figure),) = draw_all_curves(sweep("untargeted"))
        for ending in ("png", "svg"):
            save(figure, tmp_path / f"{name}.{ending}")
    for ending in ("png", "svg"):
        assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_a_single_eps_is_no_curve():
    table = sweep("untargeted")
    assert list(draw_all_curves(table[table["eps"] == 0.1])) == []


def test_published_curves_are_the_papers():
    accuracy = attack_curves("untargeted").set_index(["model", "attack", "eps"])["value"]
    assert accuracy["CNN", "fgsm", 0.1] == 0.58 and accuracy["matrix capsules", "bim", 0.5] == 0.55
    assert len(accuracy) == 19
    success = attack_curves("targeted").set_index(["model", "attack", "eps"])["value"]
    assert success["CNN", "bim", 0.25] == 0.84 and success["matrix capsules", "fgsm", 0.0] == 0.2


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
    assert with_worst_case(frame).equals(frame)


def test_invalid_rows_are_no_worst_case():
    cheat = attacked("cheat", 0.1, [False, False, False, True], valid=False, violation="outside-ball")
    table = summarise(with_worst_case(pd.concat([cheat, attacked("one", 0.1, [False, False, False, True])])))
    assert table.set_index("attack").loc[WORST_CASE, "accuracy"] == 0.75


def test_transfer_is_a_line_per_surrogate_and_model():
    frame = pd.concat(
        [
            attacked("transfer a", 0.1, [True, True, False, True], surrogate="a", model="b"),
            attacked("transfer a", 0.1, [False, True, False, True], surrogate="a", model="c"),
            attacked("fgsm", 0.1, [True] * 4, model="c"),
        ]
    )
    matrix = transfer_matrix(frame).set_index(["surrogate", "model"])["success"]
    assert matrix.to_dict() == {("a", "b"): 0.75, ("a", "c"): 0.5}
    lines = transfer_markdown(transfer_matrix(frame)).splitlines()
    assert lines[0] == "d, untargeted, eps 0.1 (linf, pixel), fooled %:"
    assert lines[2] == "| attack | crafted on | b | c |"
    assert lines[4:] == ["| transfer a | a | 75.0 (30-95) | 50.0 (15-85) |"]


def test_a_transfer_matrix_has_its_rows_in_the_order_of_its_columns():
    pairs = [("a", "x"), ("a", "b"), ("b", "x"), ("b", "a")]  # tried on, crafted on
    hits = [True, True, False, True]
    frame = pd.concat(attacked(f"transfer {crafted}", 0.1, hits, surrogate=crafted, model=on) for on, crafted in pairs)
    assert list(transfer_matrix(frame)["surrogate"].unique()) == ["x", "a", "b"]


def test_targets_are_a_matrix_of_classes():
    frame = rows(
        index=[0, 1, 0, 1],
        label=[0, 1, 0, 1],
        target=[0, 0, 1, 1],
        adv_pred=[0, 1, 1, 1],
        fooled=[True, False, True, True],
        goal="targeted",
    )
    smaller = frame.assign(eps=0.05, fooled=False)
    page = targets_markdown(target_matrix(pd.concat([smaller, frame]))).splitlines()
    assert page[0] == "m on d, a, eps 0.1 (linf), reached %:" and page[2] == "| class | to 0 | to 1 |"
    assert page[4:] == ["| 0 | 100 | 100 |", "| 1 | 0 | 100 |"]
    matrix = target_matrix(frame).set_index(["label", "target"])["success"]
    assert matrix.to_dict() == {(0, 0): 1.0, (1, 0): 0.0, (0, 1): 1.0, (1, 1): 1.0}


@pytest.mark.parametrize(("data", "other"), [("toys", True), ("smallnorb", False), ("smallNORB, both eyes", False)])
def test_published_curves_of_another_dataset_say_so(data, other):
    ((_, figure),) = draw_all_curves(sweep("untargeted").assign(data=data), published=True)
    assert ("another dataset" in figure.axes[0].get_title()) == other
    ((_, alone),) = draw_all_curves(sweep("untargeted").assign(data=data))
    assert alone.axes[0].get_title() == f"{data}, a"


MODELS, ATTACKS = ("cnn", "caps", "more"), ("fgsm", "bim on the training loss", "pgd")


@pytest.mark.parametrize(
    ("models", "attacks", "panels"),
    [
        (MODELS, ATTACKS, [f"d, {name}" for name in ATTACKS]),  # who is more robust, attack by attack
        (MODELS[:2], ATTACKS, ["d, cnn", "d, caps"]),  # which attack is stronger, model by model
        (MODELS[:2], ATTACKS[:2], [f"d, {name}" for name in ATTACKS[:2]]),
    ],
)
def test_a_panel_is_an_attacks_or_of_few_models_a_models(models, attacks, panels):
    parts = [sweep("untargeted").assign(attack=attack, model=model) for attack in attacks for model in models]
    ((_, figure),) = draw_all_curves(pd.concat(parts))
    drawn = [axis for axis in figure.axes if axis.axison]
    assert [axis.get_title() for axis in drawn] == panels
    lines = len(models) if panels[0] != "d, cnn" else len(attacks)
    assert {len(axis.lines) for axis in drawn} == {lines} == {len(axis.collections) for axis in drawn}


def test_published_curves_stand_beside_attacks_of_their_kind():
    parts = [sweep("untargeted").assign(attack=attack) for attack in ATTACKS]
    ((_, figure),) = draw_all_curves(
        pd.concat([*parts, *(part.assign(model="more") for part in parts)]), published=True
    )
    beside = [[line.get_linestyle() for line in axis.lines if line.get_marker() == "x"] for axis in figure.axes]
    assert beside == [["-", "-"], ["--", "--"], ["-", "--", "-", "--"]]  # FGSM's, BIM's, and both where it is neither


def test_small_eps_beside_large_published_ones_are_not_squeezed():
    table = sweep("untargeted")
    for scale, factor in (("symlog", 0.1), ("linear", 2.0)):
        ((_, figure),) = draw_all_curves(table.assign(eps=table["eps"] * factor), published=True)
        assert figure.axes[0].get_xscale() == scale


def test_many_panels_go_to_the_next_row_and_spare_ones_are_empty():
    parts = [sweep("untargeted").assign(attack=f"a{place}", model=model) for place in range(5) for model in MODELS]
    ((_, figure),) = draw_all_curves(pd.concat(parts))
    assert [axis.axison for axis in figure.axes] == [True] * 5 + [False] * 3


def test_an_attack_at_one_eps_is_left_out_of_curves():
    table = sweep("untargeted")
    point = table[table["eps"] == 0.1].assign(attack="point")
    ((_, figure),) = draw_all_curves(pd.concat([table, point]))
    assert [axis.get_title() for axis in figure.axes] == ["d, a"]


def test_there_is_a_figure_for_all_that_was_found():
    frame = pd.concat(
        [
            attacked("one", 0.1, [True, False, False, True]),
            attacked("one", 0.2, [True, False, False, True]),
            attacked("cw", 0.2, [True, True, False, True], closest=True),
            attacked("transfer a", 0.2, [True, True, False, True], surrogate="a"),
            attacked("aimed", 0.2, [True, True, False, True], goal="targeted", target=1),
        ]
    )
    figures = dict(draw_all(summarise(with_worst_case(frame)), frame))
    assert list(figures) == ["accuracy", "cost", "distances", "transfer", "targets"]
    (survivors,) = [line for line in figures["distances"].axes[0].lines if len(line.get_xdata()) > 1]
    assert survivors.get_ydata().tolist() == [1, 0.75, 0.5, 0.25]
    assert [text.get_text() for text in figures["transfer"].axes[0].texts] == ["0.75"]


def test_the_worst_case_of_targeted_attacks_counts_who_is_mistaken_too():
    kind = {"goal": "targeted", "target": 2}
    frame = pd.concat([attacked(name, 0.1, [False] * 4, **kind).assign(adv_pred=[0, 1, 1, 1]) for name in ("a", "b")])
    line = summarise(with_worst_case(frame)).set_index("attack").loc[WORST_CASE]
    assert (line["success"], line["accuracy"]) == (0, 0.25)


def test_targeted_attacks_alone_have_no_figure_of_cost():
    frame = pd.concat([attacked(name, 0.1, [True] * 4, goal="targeted", target=1) for name in ("a", "b")])
    assert list(dict(draw_all(summarise(frame), frame))) == ["targets"]
