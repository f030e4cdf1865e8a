from __future__ import annotations

import pandas as pd
import pytest

from robustcaps.utils.figure_style import save
from tests.analysis.figures.drawing import draw_all_curves
from tests.rows import sweep


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


@pytest.mark.parametrize(
    ("norm", "unit", "label"),
    [
        ("affine", "degrees", "affine: largest change in degrees"),
        ("l0", "count", "eps (l0, changed values)"),
        ("l1", "pixel", "eps (l1, of the pixel range [0,1])"),
    ],
)
def test_the_axis_names_what_eps_counts(norm, unit, label):
    ((_, figure),) = draw_all_curves(sweep("untargeted").assign(norm=norm, unit=unit))
    assert figure.axes[0].get_xlabel() == label


def test_figures_have_a_colour_for_every_model():
    many = pd.concat([sweep("untargeted").assign(model=f"m{k}") for k in range(12)])
    ((_, figure),) = draw_all_curves(many.assign(norm="l2"), published=True)
    assert len({line.get_color() for line in figure.axes[0].lines}) == 12  # and no published curve: they are linf


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
