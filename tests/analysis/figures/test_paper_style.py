"""Figures for papers: as wide as asked for, nothing cut off, small fonts, direct labels, names of classes."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.text import Text

import robustcaps as rc
from robustcaps.analysis.figures.line_labels import spread
from robustcaps.analysis.tables.matrices import target_matrix
from robustcaps.errors import UserError
from robustcaps.utils.figure_style import colours, save
from tests.rows import attacked, rows, sweep

MODELS = ("cnn", "vector-capsnet-small", "matrix-capsnet-small")
ATTACKS = ("fgsm", "bim", "pgd")
CURVES = pd.concat([sweep("untargeted").assign(model=m, attack=a) for m in MODELS for a in ATTACKS])
SETTING = {"data": "d", "norm": "linf", "unit": "pixel", "eps": 0.1, "success": 0.5}
TRANSFER = pd.DataFrame([{**SETTING, "attack": f"bim from {a}", "model": b} for a in MODELS for b in MODELS])


def texts(figure):
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


@pytest.mark.parametrize("width", [3.3, 6.9])
@pytest.mark.parametrize("draw", [lambda: rc.draw_accuracy(CURVES), lambda: rc.draw_transfer_map(TRANSFER)])
def test_a_figure_is_as_wide_as_asked_for_and_nothing_is_cut_off(tmp_path, draw, width):
    with rc.figure_style("paper", width=width):
        figure = draw()
        save(figure, tmp_path / "figure.pdf")
    assert figure.get_figwidth() == width and figure.get_suptitle() == ""
    assert figure.get_label()  # the caption
    figure.draw_without_rendering()  # lays it out for the renderer that measures it
    drawn = figure.get_tightbbox()
    assert drawn.x0 >= -0.02 and drawn.x1 <= width + 0.02
    assert drawn.y0 >= -0.02 and drawn.y1 <= figure.get_figheight() + 0.02
    assert b"/Type /Font" in (tmp_path / "figure.pdf").read_bytes()


def test_fonts_are_small_and_panels_stand_in_two_columns():
    with rc.figure_style("paper"):
        figure = rc.draw_accuracy(CURVES)
    assert {text.get_fontsize() for text in texts(figure)} <= {7.0}
    assert figure.axes[0].get_subplotspec().get_gridspec().ncols == 2
    assert [axis.get_title() for axis in figure.axes if axis.axison] == list(ATTACKS)  # the dataset is in the caption
    assert figure.get_label().endswith("; d")


def test_a_single_panel_has_labels_at_the_lines_instead_of_a_legend():
    one = CURVES[CURVES["attack"] == "fgsm"]
    with rc.figure_style("paper"):
        figure = rc.draw_accuracy(one)
    assert not figure.legends and {text.get_text() for text in figure.axes[0].texts} == set(MODELS)
    assert rc.draw_accuracy(one).legends  # on the screen there is a legend


def test_labels_are_moved_apart_in_the_order_of_their_lines():
    assert spread([0.5, 0.0, 0.0], [0.5, 0.3, 0.2], 0.1) == [0.5, 0.1, 0.0]
    assert spread([0.5, 0.45], [0, 0], 0.1) == pytest.approx([0.55, 0.45])


def test_a_figure_for_a_paper_is_always_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        with rc.figure_style("paper"):
            for ending in ("pdf", "svg", "png"):
                save(rc.draw_accuracy(CURVES), tmp_path / f"{name}.{ending}")
    for ending in ("pdf", "svg", "png"):
        assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_after_the_style_everything_is_as_before():
    with rc.figure_style("paper"):
        pass
    assert rc.draw_accuracy(CURVES).get_suptitle().startswith("Accuracy under attack")


@pytest.mark.parametrize(
    ("style", "problem"),
    [
        ({"name": "papr"}, "unknown figure style 'papr'. Did you mean 'paper'?"),
        ({"width": 0.5}, "figures must be at least 2 inches wide, not 0.5."),
    ],
)
def test_a_wrong_style_is_one_line(style, problem):
    with pytest.raises(UserError) as error, rc.figure_style(**style):
        pass
    assert str(error.value) == problem


def test_no_curve_is_one_line():
    with pytest.raises(UserError, match="no untargeted attack has more than one eps here"):
        rc.draw_accuracy(CURVES[CURVES["eps"] == 0.1])


@pytest.mark.parametrize("classes", [{}, {"d": ["cat", "dog"]}])
def test_classes_have_names_where_they_are_known(classes):
    aimed = rows(index=[0, 1], label=[0, 1], target=[1, 0], adv_pred=[1, 1], fooled=[True, False], goal="targeted")
    figure = rc.draw_target_maps(target_matrix(aimed, classes))
    expected = classes.get("d", ["0", "1"])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == expected
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == expected


def test_transfer_to_a_class_without_a_name_keeps_its_number():
    aimed = attacked("aimed", 0.2, [True, True, False, True], goal="targeted", target=2)
    assert set(target_matrix(aimed, {"d": ["cat", "dog"]})["target_name"]) == {"2"}


def test_twenty_models_have_colours_of_their_own():
    assert len(set(colours([str(number) for number in range(20)]))) == 20
