from __future__ import annotations

import pandas as pd
import pytest

from robustcaps.analysis.tables.perturbation_norms import (
    ANY_ATTACK,
    compare_norms,
    distance_grids,
    larger_side,
    norm_comparison_grids,
    norm_sentence,
    smallest_norms,
    tabulate_distances,
)
from robustcaps.utils.grid import grids_markdown
from tests.rows import attacked, found


def distances(rows, models=()):
    return tabulate_distances(smallest_norms(rows), models)


def comparisons(rows):
    return compare_norms(smallest_norms(rows))


def test_distances_count_every_sample_once_at_its_smallest():
    near = attacked("cw", 1.0, [True, True, False, True], norm="l2", closest=True, l2=[0.5, 0.7, 0.0, 0.0])
    far = attacked("cw", 2.0, [True, True, True, True], norm="l2", closest=True, l2=[0.5, 0.7, 1.5, 0.0])
    line = distances(pd.concat([near, far, attacked("fgsm", 0.1, [True] * 4)])).iloc[0]
    assert (line["attack"], line["n"], line["found"]) == ("cw", 4, 1.0)
    assert (line["quartile_low"], line["median"], line["quartile_high"]) == (0.0, 0.5, 0.7)
    assert distances(near).iloc[0]["quartile_high"] == 0.7 and distances(near).iloc[0]["found"] == 0.75


def test_sizes_in_other_norms_are_those_that_the_rows_have():
    rows = attacked("l0_fmn", 50.0, [True, True, True, False], norm="l0", closest=True, l2=[9.0] * 4)
    line = distances(rows.assign(size=[3.0, 5.0, 4.0, 0.0], unit="count")).iloc[0]
    assert (line["norm"], line["unit"], line["median"], line["mean"]) == ("l0", "count", 4.0, 4.0)


def test_means_are_those_of_the_fooled():
    line = distances(found([1.0, 2.0, 3.0, None])).iloc[0]
    assert (line["mean"], line["found"]) == (2.0, 0.75)
    assert 1 <= line["mean_low"] < 2 < line["mean_high"] <= 3
    assert distances(found([None, None])).iloc[0][["mean", "mean_low", "mean_high"]].isna().all()


SMALL, LARGE = [1.0, 1.1, 1.2, 1.3] * 5, [2.0, 2.3, 2.2, 2.1] * 5
SIZES = {
    "larger": (LARGE, SMALL, "caps needs larger perturbations than cnn on mnist", "mean 2.15 vs 1.15, difference 1 ("),
    "smaller": (SMALL, LARGE, "cnn needs larger perturbations than caps on mnist", "mean 2.15 vs 1.15, difference 1 ("),
    "not all fooled": ([*LARGE, None], [*SMALL, 1.0], "caps needs larger perturbations than cnn", "n = 20 of 21"),
}


@pytest.mark.parametrize(("caps", "cnn", "verdict", "figures"), SIZES.values(), ids=SIZES)
def test_who_needs_larger_perturbations_is_said_with_its_interval(caps, cnn, verdict, figures):
    frame = pd.concat([found(caps, model="caps", data="mnist"), found(cnn, model="cnn", data="mnist")])
    table = comparisons(frame)
    sentence = norm_sentence(table[table["attack"] == ANY_ATTACK].iloc[0])
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
    lines = comparisons(pd.concat(parts)).set_index("attack")
    assert list(lines.index) == ["cw", "deepfool", ANY_ATTACK]
    figures = lines[["mean_first", "mean_second", "difference", "n"]]
    assert figures.loc[ANY_ATTACK].tolist() == [1.5, 1.0, 0.5, 2]
    assert figures.loc["cw"].tolist() == [2.5, 1.0, 1.5, 2] and figures.loc["deepfool"].tolist() == [2.5, 5, -2.5, 2]


def test_comparisons_say_how_many_each_attack_fooled():
    parts = [found([1.0, 4.0, None, None], model="a"), found([1.0, 1.0, 1.0, None], model="b")]
    line = comparisons(pd.concat(parts)).iloc[0]
    assert (line["n"], line["of"], line["found_first"], line["found_second"]) == (2, 4, 0.5, 0.75)


def test_a_page_says_who_needs_the_larger_by_each_attack():
    parts = [
        *(found(sizes, model=model) for model, sizes in (("a", SMALL), ("b", LARGE))),
        *(found(sizes, model=model, attack="deepfool") for model, sizes in (("a", SMALL), ("b", SMALL[::-1]))),
    ]
    lines = grids_markdown(norm_comparison_grids(comparisons(pd.concat(parts)))).splitlines()
    ends = [(line.split(" | ")[1], line.split(" | ")[-1]) for line in lines[2:5]]
    assert ends == [("cw", "b |"), ("deepfool", "undecided |"), (ANY_ATTACK, "undecided |")]
    assert lines[2].startswith("| d | cw | l2 | a | b | 100, 100 | 1.15, 2.15 | -1 (-1.1 to -0.9")


@pytest.mark.parametrize(
    ("first", "second", "side"),
    [
        (LARGE, SMALL, 1),
        (SMALL, LARGE, -1),
        (LARGE, [*SMALL[:15], *[None] * 5], 0),  # what the second withstood would make its mean larger
        ([*LARGE[:15], *[None] * 5], SMALL, 1),
        (LARGE[:9], SMALL[:9], 0),  # nine samples
    ],
)
def test_who_needs_the_larger_is_decided_only_if_nothing_speaks_against_it(first, second, side):
    table = comparisons(pd.concat([found(first, model="a"), found(second, model="b")]))
    assert {larger_side(line) for line in table.to_dict("records")} == {side}


def test_nobody_is_compared_where_nobody_was_fooled():
    frame = pd.concat([found([None], model="a"), found([1.0], model="b")])
    assert comparisons(frame).empty


def test_smallest_perturbations_stand_beside_the_published_ones():
    parts = [found([1.0, 1.0], model="cnn"), found([2.0, None], model="capsules"), found([3.0, 3.0], model="other")]
    frame = pd.concat(parts).assign(data="mnist")
    models = [{"label": "cnn", "name": "cnn"}, {"label": "capsules", "name": "vector-capsnet-small"}]
    table = distances(frame, models)
    assert table["published_mean"].fillna(0).tolist() == [1.40, 1.82, 0]
    page = grids_markdown(distance_grids(table))
    assert page.splitlines()[2:5] == [
        "| mnist | cw | cnn | untargeted | l2 | 2 | 100.0 | 1 (1-1) | 1 | 1.40 |",
        "| mnist | cw | capsules | untargeted | l2 | 2 | 50.0 | 2* (2-2) | 2 | 1.82 |",
        "| mnist | cw | other | untargeted | l2 | 2 | 100.0 | 3 (3-3) | 3 |  |",
    ]
    assert "Michels et al. 2019" in page
    for other in (frame.assign(goal="targeted"), frame.assign(norm="linf"), frame.assign(data="toys")):
        assert distances(other, models)["published_mean"].isna().all()


def test_the_true_class_as_a_target_is_no_distance():
    frame = attacked("cw", 1.0, [True] * 4, goal="targeted", closest=True, l2=0.7, norm="l2", target=1)
    own = attacked("cw", 1.0, [True] * 4, goal="targeted", closest=True, l2=0.0, norm="l2", target=0)
    assert distances(pd.concat([frame, own])).iloc[0]["median"] == 0.7
