from __future__ import annotations

import pandas as pd
import pytest

from robustcaps.breakdowns import (
    compare_sizes,
    distances,
    mean_interval,
    size_sentences,
    sizes_markdown,
    target_matrix,
    transfer_matrix,
)
from robustcaps.figures import draw_all, save
from robustcaps.figures.curves import draw_all_curves
from robustcaps.published import attack_curves, published_size
from robustcaps.statistics import wilson
from robustcaps.tables import WORST_CASE, markdown, summarise, violations, with_worst_case


def rows(**columns):
    fixed = {"suite": "s", "data": "d", "model": "m", "attack": "a", "norm": "linf", "unit": "pixel", "seed": 0}
    frame = pd.DataFrame(columns)
    defaults = {"goal": "untargeted", "eps": 0.1, "target": -1, "valid": True, "violation": "", "forwards": 2.0}
    costs = {"backwards": 1.0, "queries": 2.0, "linf": 0.1, "l2": 1.0}
    kind = {"surrogate": "", "closest": False, "clean_pred": 0}
    for name, value in {**fixed, **defaults, **costs, **kind}.items():
        if name not in frame:
            frame[name] = value
    return frame


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


def attacked(attack, eps, fooled, **more):
    """Four samples of class 0, the last of which is misclassified anyway."""
    predictions = [1 if hit else 0 for hit in fooled]
    names = {"attack": attack, "eps": eps, "clean_pred": [0, 0, 0, 1], **more}
    return rows(index=range(4), label=[0] * 4, adv_pred=predictions, fooled=fooled, **names)


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


def test_targets_are_a_matrix_of_classes():
    frame = rows(
        index=[0, 1, 0, 1],
        label=[0, 1, 0, 1],
        target=[0, 0, 1, 1],
        adv_pred=[0, 1, 1, 1],
        fooled=[True, False, True, True],
        goal="targeted",
    )
    matrix = target_matrix(frame).set_index(["label", "target"])["success"]
    assert matrix.to_dict() == {(0, 0): 1.0, (1, 0): 0.0, (0, 1): 1.0, (1, 1): 1.0}


def test_distances_count_every_sample_once_at_its_smallest():
    near = attacked("cw", 1.0, [True, True, False, True], norm="l2", closest=True, l2=[0.5, 0.7, 0.0, 0.0])
    far = attacked("cw", 2.0, [True, True, True, True], norm="l2", closest=True, l2=[0.5, 0.7, 1.5, 0.0])
    line = distances(pd.concat([near, far, attacked("fgsm", 0.1, [True] * 4)])).iloc[0]
    assert (line["attack"], line["n"], line["found"]) == ("cw", 4, 1.0)
    assert (line["quartile_low"], line["median"], line["quartile_high"]) == (0.0, 0.5, 0.7)
    assert distances(near).iloc[0]["quartile_high"] == 0.7 and distances(near).iloc[0]["found"] == 0.75


@pytest.mark.parametrize("values", [[2.0] * 9, [0.0, 1.0] * 50, [0.0] * 99 + [100.0]])
def test_the_interval_of_a_mean_holds_it_and_is_the_same_each_time(values):
    mean, low, high = mean_interval(pd.Series(values))
    assert (mean, low, high) == mean_interval(pd.Series(values))
    assert low <= mean <= high and mean == pytest.approx(sum(values) / len(values))
    assert (low == high) == (len(set(values)) == 1)


def test_the_interval_of_a_mean_is_as_wide_as_theory_says():
    values = pd.Series([0.0, 1.0] * 50)
    _, low, high = mean_interval(values)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 10, rel=0.1)


def found(sizes, **more):
    """Samples with the smallest perturbation of each; None: it was not fooled."""
    fooled = [size is not None for size in sizes]
    kind = {"attack": "cw", "eps": 9.0, "norm": "l2", "closest": True, "l2": [size or 0.0 for size in sizes]}
    predictions = [int(hit) for hit in fooled]
    return rows(index=range(len(sizes)), label=0, adv_pred=predictions, fooled=fooled, **{**kind, **more})


def test_means_are_those_of_the_fooled():
    line = distances(found([1.0, 2.0, 3.0, None])).iloc[0]
    assert (line["mean"], line["found"]) == (2.0, 0.75)
    assert 1 <= line["mean_low"] < 2 < line["mean_high"] <= 3
    assert distances(found([None, None])).iloc[0][["mean", "mean_low", "mean_high"]].isna().all()


SMALL, LARGE = [1.0, 1.1, 1.2, 1.3] * 5, [2.0, 2.3, 2.2, 2.1] * 5
SIZES = {
    "larger": (LARGE, SMALL, "caps needs larger perturbations than cnn on mnist", "mean 2.15 vs 1.15, difference 1 ("),
    "smaller": (SMALL, LARGE, "cnn needs larger perturbations than caps on mnist", "mean 2.15 vs 1.15, difference 1 ("),
    "equal": (SMALL, SMALL[::-1], "does not surely need larger perturbations than", "(95 %: -0."),
    "not all fooled": ([*LARGE, None], [*SMALL, 1.0], "caps needs larger perturbations than cnn", "n = 20 of 21"),
}


@pytest.mark.parametrize(("caps", "cnn", "verdict", "figures"), SIZES.values(), ids=SIZES)
def test_who_needs_larger_perturbations_is_said_with_its_interval(caps, cnn, verdict, figures):
    frame = pd.concat([found(caps, model="caps", data="mnist"), found(cnn, model="cnn", data="mnist")])
    (sentence,) = size_sentences(compare_sizes(frame))
    assert verdict in sentence and figures in sentence


def test_sizes_are_compared_at_the_smallest_that_any_attack_on_both_found():
    """An attack that only one of two models has met would make that one look weaker."""
    parts = [
        found([1.0, 4.0], model="a"),
        found([3.0, 2.0], model="a", attack="deepfool"),
        found([0.1, 0.1], model="a", attack="boundary"),
        found([1.0, 1.0], model="b"),
        found([5.0, 5.0], model="b", attack="deepfool"),
    ]
    line = compare_sizes(pd.concat(parts)).iloc[0]
    assert (line["mean_first"], line["mean_second"], line["difference"], line["n"]) == (1.5, 1.0, 0.5, 2)


def test_nobody_is_compared_where_nobody_was_fooled():
    frame = pd.concat([found([None], model="a"), found([1.0], model="b")])
    assert size_sentences(compare_sizes(frame)) == []


def test_smallest_perturbations_stand_beside_the_published_ones():
    parts = [found([1.0, 1.0], model="cnn"), found([2.0, None], model="capsules"), found([3.0, 3.0], model="other")]
    table = distances(pd.concat(parts).assign(data="mnist"))
    names = {"cnn": "cnn", "capsules": "vector-capsnet-small"}
    page = sizes_markdown(table, names, ["one needs more than the other"])
    lines = page.splitlines()
    assert lines[2:5] == [
        "| mnist | cw | cnn | l2 | 2 | 100.0 | 1 (1-1) | 1.40 |",
        "| mnist | cw | capsules | l2 | 2 | 50.0 | 2* (2-2) | 1.82 |",
        "| mnist | cw | other | l2 | 2 | 100.0 | 3 (3-3) |  |",
    ]
    assert "Michels et al. 2019" in page and lines[-1] == "one needs more than the other."


def test_published_sizes_are_the_papers():
    assert published_size("cnn-small", "fashion-mnist", "foolbox.boundary") == 1.24
    assert published_size("matrix-capsnet", "mnist", "deepfool") == 2.02
    assert published_size("cnn", "toys", "cw") is None and published_size("mine", "mnist", "cw") is None


@pytest.mark.parametrize(("data", "published"), [("mnist", [[1.40], [1.82]]), ("toys", [])])
def test_mean_sizes_are_drawn_beside_the_papers_where_the_dataset_is_the_same(data, published):
    parts = [found([1.0, 2.0], model="cnn"), found([2.0, 3.0], model="capsules"), found([2.0, 3.0], norm="linf")]
    frame = pd.concat(parts).assign(data=data)
    (axis,) = dict(draw_all(summarise(frame), frame, published=True))["means"].axes
    ours = [bars.lines[0].get_ydata().tolist() for bars in axis.containers]
    assert ours == [[1.5], [2.5]]
    beside = [line.get_ydata() for line in axis.lines if line.get_marker() in ("x", "D")]
    assert [list(values) for values in beside] == published
    assert "means" not in dict(draw_all(summarise(frame), frame))


@pytest.mark.parametrize(("data", "other"), [("toys", True), ("smallnorb", False), ("smallNORB, both eyes", False)])
def test_published_curves_of_another_dataset_say_so(data, other):
    ((_, figure),) = draw_all_curves(sweep("untargeted").assign(data=data), published=True)
    assert ("another dataset" in figure.axes[0].get_title()) == other
    ((_, alone),) = draw_all_curves(sweep("untargeted").assign(data=data))
    assert alone.axes[0].get_title() == data


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


def test_the_true_class_as_a_target_is_no_distance():
    frame = attacked("cw", 1.0, [True] * 4, goal="targeted", closest=True, l2=0.7, norm="l2", target=1)
    own = attacked("cw", 1.0, [True] * 4, goal="targeted", closest=True, l2=0.0, norm="l2", target=0)
    assert distances(pd.concat([frame, own])).iloc[0]["median"] == 0.7


def test_targeted_attacks_alone_have_no_figure_of_cost():
    frame = pd.concat([attacked(name, 0.1, [True] * 4, goal="targeted", target=1) for name in ("a", "b")])
    assert list(dict(draw_all(summarise(frame), frame))) == ["targets"]
