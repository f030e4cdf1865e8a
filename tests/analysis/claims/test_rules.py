"""Claims are judged by numbers: tables as suites write them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from robustcaps.analysis.claims import judge_claims
from robustcaps.analysis.claims.evidence import paired_difference
from robustcaps.analysis.tables.comparisons import compare_attacks, compare_models
from robustcaps.analysis.tables.models import tabulate_models
from robustcaps.analysis.tables.perturbation_norms import compare_norms, smallest_norms
from robustcaps.analysis.tables.summary import summarise
from robustcaps.diagnostics.kinds.detection import CLEAN, tabulate_detection
from robustcaps.diagnostics.kinds.gradients import tabulate_gradients
from robustcaps.diagnostics.kinds.overlap import tabulate_overlap
from robustcaps.diagnostics.kinds.verdict import tabulate_verdicts
from robustcaps.diagnostics.kinds.viewpoints import tabulate_views
from robustcaps.utils.statistics import wilson
from tests.analysis.claims.published_tables import (
    CNN,
    MATRIX,
    VECTOR,
    N,
    attacked,
    auc_of,
    judged,
    load,
    smallest,
    sweep,
    views,
    write,
)


@pytest.mark.parametrize("attack", ["fgsm", "bim", "bim on the training loss"])
@pytest.mark.parametrize("order", [(MATRIX, CNN), (CNN, MATRIX)])
@pytest.mark.parametrize(
    ("capsules", "cnn", "finding", "counts"),
    [
        ([0.9, 0.5], [0.6, 0.5], "agrees", "more at 1, less at 0 of 2 eps"),
        ([0.6, 0.5], [0.9, 0.5], "differs", "more at 0, less at 1 of 2 eps"),
        ([0.9, 0.2], [0.6, 0.5], "undecided", "more at 1, less at 1 of 2 eps"),
        ([0.7, 0.5], [0.69, 0.5], "differs", "more at 0, less at 0 of 2 eps"),  # not noticeable
        ([0.58, 0.5], [0.5, 0.5], "undecided", "more at 1, less at 0 of 2 eps"),  # perhaps
    ],
)
def test_who_keeps_more_accuracy_is_decided_over_the_sweep(tmp_path, attack, order, capsules, cnn, finding, counts):
    shares = {MATRIX: capsules, CNN: cnn}
    write(tmp_path, "attacks", "comparisons", compare_models(sweep({name: shares[name] for name in order}, attack)))
    (line,) = judge_claims(load(tmp_path)).to_dict("records")
    assert line["finding"] == finding and line["evidence"].endswith(f"; significantly (p < 0.05, Holm) {counts}")
    assert line["paper"] == "Hinton et al. 2018 (smallNORB)" and line["data"] == "toys"
    assert ("training loss" in line["claim"]) == ("training loss" in attack)


def test_other_comparisons_of_a_suite_do_not_make_a_claim_less_sure(tmp_path):
    shares = {MATRIX: [0.5], CNN: [0.46], **{f"other {place}": [0.5] for place in range(8)}}
    write(tmp_path, "attacks", "comparisons", compare_models(sweep(shares, "fgsm")))
    line = judged(tmp_path, "under FGSM")
    assert ", p = 0.008, advantage 4.0 points (" in line["evidence"]  # 8 against 0: 2 * 2^-8


def test_evidence_has_figures_intervals_and_p(tmp_path):
    rows = sweep({CNN: [0.6], MATRIX: [0.9]}, "fgsm", data="smallnorb")
    write(tmp_path, "attacks", "comparisons", compare_models(rows))
    (line,) = judge_claims(load(tmp_path)).to_dict("records")
    ends = [f"({100 * low:.1f}-{100 * high:.1f})" for low, high in (wilson(180, N), wilson(120, N))]
    assert line["evidence"] == (
        f"accuracy at eps 0.1: matrix-capsnet-small 90.0 % {ends[0]}, cnn 60.0 % {ends[1]}, n = 200, p < 0.001, "
        f"advantage {paired_difference(60, 0, N).points}"
    )
    assert line["paper"] == "Hinton et al. 2018"  # their own dataset


@pytest.mark.parametrize(
    ("capsules", "cnn", "finding"),
    [
        ([0.2, 0.25], [0.4, 0.8], "agrees"),
        ([0.2, 0.7], [0.4, 0.8], "differs"),  # it rises on both
        ([0.2, 0.2], [0.2, 0.25], "differs"),  # and on neither
        ([0.2, 0.4], [0.4, 0.8], "undecided"),
    ],
)
def test_targeted_success_is_measured_by_chance(tmp_path, capsules, cnn, finding):
    rows = sweep({MATRIX: capsules, CNN: cnn}, "bim", goal="targeted")
    clean = [attacked(model, 0.2, "bim", eps=0.0, goal="targeted") for model in (MATRIX, CNN)]
    write(tmp_path, "attacks", "table", summarise(pd.concat([rows, *clean])))
    line = judged(tmp_path, "targeted BIM")
    assert line["finding"] == finding and "chance 20.0 %" in line["evidence"]


def test_without_an_eps_of_zero_there_is_no_chance_to_compare_with(tmp_path):
    rows = sweep({MATRIX: [0.2], CNN: [0.8]}, "bim", goal="targeted")
    write(tmp_path, "attacks", "table", summarise(rows))
    assert judge_claims(load(tmp_path)).empty


@pytest.mark.parametrize(
    ("shares", "finding"),
    [
        ({MATRIX: [0.5, 0.7], CNN: [0.5, 0.71]}, "agrees"),
        ({MATRIX: [0.5, 0.2], CNN: [0.5, 0.7]}, "agrees"),
        ({MATRIX: [0.5, 0.9], CNN: [0.5, 0.7]}, "differs"),
        ({MATRIX: [0.5, 0.7], "cnn-small": [0.5, 0.7], CNN: [0.2, 0.3]}, "differs"),  # the large one comes first
        ({MATRIX: [0.5, 0.7], "cnn-small": [0.5, 0.7]}, "agrees"),  # where the large one made the images
    ],
)
def test_black_box_capsules_must_not_be_noticeably_better(tmp_path, shares, finding):
    write(tmp_path, "blackbox", "comparisons", compare_models(sweep(shares, "fgsm from cnn:b")))
    line = judged(tmp_path, "FGSM images made with a CNN")
    assert line["finding"] == finding and "points" in line["evidence"]


def test_few_black_box_images_leave_a_noticeable_advantage_open(tmp_path):
    rows = sweep({MATRIX: [0.6], CNN: [0.5]}, "bim from cnn:b", n=20)
    write(tmp_path, "blackbox", "comparisons", compare_models(rows))
    assert judged(tmp_path, "BIM images made with a CNN")["finding"] == "undecided"


def gradients(model, zeros, size, n=100):
    names = {"suite": "s", "data": "toys", "model": model, "diagnostic": "gradients", "loss": "training"}
    return pd.DataFrame({"zeros": [zeros] * n, "l2": size, "finite": True}).assign(**names)


@pytest.mark.parametrize(
    ("zeros", "size", "findings"),
    [
        (0.0, 1e-2, ("agrees", "agrees")),
        (0.9, 1e-9, ("differs", "differs")),
        (1.0, 0.0, ("differs", "differs")),
        (0.3, 1.0, ("undecided", "differs")),
        (0.3, 10**-1.1, ("undecided", "undecided")),
    ],
)
def test_gradients_have_zeros_and_sizes(tmp_path, zeros, size, findings):
    rows = pd.concat([gradients(CNN, 0.3, 1.0), gradients(MATRIX, zeros, size)])
    write(tmp_path, "gradients", "gradients", tabulate_gradients(rows))
    lines = [judged(tmp_path, words) for words in ("exact zeros", "orders of magnitude")]
    assert tuple(line["finding"] for line in lines) == findings


@pytest.mark.parametrize(
    ("capsules", "cnn", "finding", "words"),
    [
        (1e-2, 1.0, "agrees", "2.0 orders smaller"),
        (50.0, 1.0, "differs", "1.7 orders larger"),
        (0.0, 1.0, "differs", f"{MATRIX} has none in the median"),
        (1.0, 0.0, "differs", f"{CNN} has none in the median"),
        (0.0, 0.0, "undecided", "nothing to compare"),
    ],
)
def test_sizes_of_gradients_are_shown_as_they_are(tmp_path, capsules, cnn, finding, words):
    rows = pd.concat([gradients(model, float(not size), size) for model, size in ((CNN, cnn), (MATRIX, capsules))])
    write(tmp_path, "gradients", "gradients", tabulate_gradients(rows))
    line = judged(tmp_path, "orders of magnitude")
    assert line["finding"] == finding and line["evidence"].startswith(words)


@pytest.mark.parametrize("by", ["azimuths", "elevations"])
@pytest.mark.parametrize(
    ("capsules", "cnn", "finding"),
    [
        ((0.2, 0.25), (0.2, 0.4), "agrees"),
        ((0.2, 0.4), (0.21, 0.25), "differs"),
        ((0.2, 0.3), (0.2, 0.32), "undecided"),
        ((0.4, 0.42), (0.2, 0.4), "undecided"),  # not at equal errors on familiar views
    ],
)
def test_novel_views_cost_less_at_equal_errors(tmp_path, by, capsules, cnn, finding):
    rows = pd.concat([views(CNN, *cnn, by), views(MATRIX, *capsules, by)])
    write(tmp_path, "viewpoints", "views", tabulate_views(rows, []))
    (line,) = judge_claims(load(tmp_path)).to_dict("records")  # and none of the published lines
    assert by in line["claim"] and line["finding"] == finding
    assert ("do not compare" in line["evidence"]) == (capsules[0] == 0.4)


@pytest.mark.parametrize("worse", ["1 iteration", "cross-entropy", "no coordinates", "vector poses"])
@pytest.mark.parametrize(("error", "finding"), [(0.3, "agrees"), (0.1, "differs"), (0.21, "undecided")])
def test_an_ablation_is_judged_by_test_errors(tmp_path, worse, error, finding):
    n, models = 2000, []
    for label, share in (("3 iterations", 0.2), (worse, error)):
        interval = [float(end) for end in wilson((1 - share) * n, n)]
        card = {"label": label, "name": "m", "data": "toys", "parameters": 1, "n_test": n, "options": {}}
        models.append({**card, "accuracy": 1 - share, "interval": interval})
    table = tabulate_models(models, summarise(attacked("other", 0.5, "fgsm")))
    write(tmp_path, "ablation", "models", table)
    (line,) = judge_claims(load(tmp_path)).to_dict("records")
    assert line["finding"] == finding and f"{worse} {100 * error:.1f} %" in line["evidence"]
    assert "n = 2000" in line["evidence"]


@pytest.mark.parametrize(
    ("data", "attack", "capsules", "cnn", "finding"),
    [
        ("mnist", "cw", (2.0, 0), (1.0, 0), "agrees"),
        ("mnist", "foolbox.boundary", (1.0, 0), (2.0, 0), "differs"),
        ("mnist", "deepfool", (1.0, 0), (1.0, 0), "undecided"),
        ("mnist", "cw", (2.0, 0), (1.0, 30), "undecided"),  # of the CNN 30 were not fooled at any size
        ("mnist", "cw", (2.0, 30), (1.0, 0), "agrees"),
        ("mnist", "cw", (2.0, 92), (1.0, 92), "undecided"),  # eight samples
        ("fashion-mnist", "foolbox.boundary", (1.0, 0), (2.0, 0), "agrees"),
        ("fashion-mnist", "deepfool", (1.0, 0), (2.0, 0), "differs"),
        ("fashion-mnist", "cw", (1.0, 0), (1.005, 0), "agrees"),
        ("fashion-mnist", "cw", (1.0, 3), (1.0, 0), "undecided"),
        ("fashion-mnist", "cw", (1.0, 0), (2.0, 0), "differs"),
        ("fashion-mnist", "cw", (1.0, 50), (1.05, 50), "agrees"),
        ("fashion-mnist", "cw", (1.0, 50), (1.3, 50), "differs"),
    ],
)
def test_smallest_perturbations_are_compared_as_published(tmp_path, data, attack, capsules, cnn, finding):
    sizes = {VECTOR: capsules, CNN: cnn}
    rows = pd.concat(smallest(model, *size, attack, data) for model, size in sizes.items())
    write(tmp_path, "minimal-l2", "sizes", compare_norms(smallest_norms(rows)))
    (line,) = judge_claims(load(tmp_path)).to_dict("records")
    assert line["finding"] == finding and line["paper"] == "Michels et al. 2019"
    assert f"({100 - cnn[1]} % fooled)" in line["evidence"]


def test_sizes_are_compared_sample_by_sample(tmp_path):
    """Means whose own intervals overlap widely may differ clearly: samples differ more than models do."""
    sizes = np.linspace(0.1, 5.0, 100)
    rows = [smallest(model, 1.0).assign(l2=sizes * factor) for model, factor in ((CNN, 1.0), (VECTOR, 1.1))]
    write(tmp_path, "minimal-l2", "sizes", compare_norms(smallest_norms(pd.concat(rows))))
    line = judged(tmp_path, "Carlini-Wagner")
    assert line["finding"] == "agrees" and "difference 0.26 (0.2" in line["evidence"]


def test_about_equal_is_undecided_while_intervals_are_wide(tmp_path):
    rows = pd.concat([smallest(model, 1.0, data="fashion-mnist") for model in (VECTOR, CNN)])
    apart = np.concatenate([np.linspace(0.1, 5.0, 100), np.linspace(5.0, 0.1, 100)])
    write(tmp_path, "minimal-l2", "sizes", compare_norms(smallest_norms(rows.assign(l2=apart))))
    line = judged(tmp_path, "Carlini-Wagner")
    assert (
        line["finding"] == "undecided"
        and "about the same mean L2 on capsules as on a CNN (0.50 and 0.51)" in (line["claim"])
    )


@pytest.mark.parametrize("model", [VECTOR, MATRIX])
@pytest.mark.parametrize(("vote", "plain"), [("vote", "pgd"), ("vote from the image", "bim")])
@pytest.mark.parametrize(
    ("left", "finding"), [((0.44, 0.5), "agrees"), ((0.56, 0.5), "differs"), ((0.49, 0.5), "undecided")]
)
def test_votes_are_attacked_at_equal_budgets(tmp_path, model, vote, plain, left, finding):
    rows = pd.concat(attacked(model, share, name) for name, share in zip((vote, plain), left, strict=True))
    elsewhere = attacked(model, 1.0, plain, eps=0.5)  # an eps that the other has not
    write(tmp_path, "vote", "attack_comparisons", compare_attacks(pd.concat([rows, elsewhere])))
    line = judged(tmp_path, f"fools more than {plain} ")
    assert line["finding"] == finding and line["evidence"].startswith(f"accuracy left at eps 0.1: {plain} ")
    assert model in line["claim"] and line["paper"] == "Gu et al. 2021 (other datasets)"


def detected(attack, fooled, flagged, eps, data="mnist"):
    """Return rows of an attack: so many of the samples are fooled, and so many of these flagged."""
    index = np.arange(N)
    columns = {"index": index, "fooled": index < fooled * N, "flagged": index < flagged * fooled * N}
    rows = pd.DataFrame(columns).assign(suite="s", data=data, model=VECTOR, diagnostic="detection", attack=attack)
    rows = rows.assign(goal="untargeted", norm="linf", unit="pixel", eps=eps)
    return rows.assign(undetected=rows["fooled"] & ~rows["flagged"])


def detection(folder, *parts, data="mnist"):
    rows = [detected(CLEAN, 0, 0, 0.0, data), *(detected(*part, data) for part in parts)]
    write(folder, "detect", "detection", tabulate_detection(pd.concat(rows)))


@pytest.mark.parametrize("attack", ["fgsm", "bim"])
@pytest.mark.parametrize(
    ("flagged", "finding"),
    [([0.5, 0.9], "agrees"), ([0.5, 0.1], "differs"), ([0.1, 0.9], "undecided"), ([0.5, 0.52], "undecided")],
)
def test_a_detector_flags_most_or_not(tmp_path, attack, flagged, finding):
    detection(tmp_path, *((attack, 0.8, share, 0.1 * (place + 1)) for place, share in enumerate(flagged)))
    line = judged(tmp_path, f"most {attack.upper()} images")
    assert line["finding"] == finding and line["paper"] == "Frosst et al. 2018"


def test_nothing_is_flagged_of_what_fools_nobody(tmp_path):
    detection(tmp_path, ("fgsm", 0.0, 0.0, 0.1))
    assert judge_claims(load(tmp_path)).empty


@pytest.mark.parametrize(("knowing", "finding"), [(0.1, "agrees"), (0.95, "differs"), (0.6, "undecided")])
def test_an_attack_that_knows_of_the_detector_is_compared_with_one_that_does_not(tmp_path, knowing, finding):
    detection(tmp_path, ("bim", 0.8, 0.6, 0.1), ("bim that reconstructs", 0.8, knowing, 0.1), data="toys")
    line = judged(tmp_path, "knows of the detector")
    assert line["finding"] == finding
    assert line["paper"] == "Frosst et al. 2018 (MNIST, Fashion-MNIST, SVHN)"


@pytest.mark.parametrize(("both", "finding"), [(0.9, "agrees"), (0.5, "differs"), (0.71, "undecided")])
def test_overlapping_digits_are_judged_over_all_overlaps(tmp_path, both, finding):
    rows = [
        pd.DataFrame({"found": np.where(np.arange(900) < share * 900, 2, 1), "overlap": np.arange(900) / 900}).assign(
            suite="s", data="multimnist", model=model, diagnostic="overlap"
        )
        for model, share in ((VECTOR, both), ("cnn, as large", 0.7), ("cnn-small", 0.0))
    ]
    write(tmp_path, "overlap", "overlap", tabulate_overlap(pd.concat(rows)))
    (line,) = judge_claims(load(tmp_path)).to_dict("records")
    assert line["finding"] == finding and line["paper"] == "Sabour et al. 2017" and "n = 900" in line["evidence"]


@pytest.mark.parametrize(
    ("shares", "n", "finding"),
    [
        ([(0.6, 0.1), (0.02, 0.0)], 500, "agrees"),
        ([(0.3, 0.29), (0.02, 0.0)], 500, "differs"),
        ([(0.4, 0.3)], 50, "undecided"),
        ([(0.42, 0.40)], 100, "differs"),  # what withstands both attacks is the same samples
        ([(0.42, 0.40)], 50, "undecided"),
        ([(0.5, 0.5)], 20, "undecided"),
        ([(0.06, 0.0)], 500, "undecided"),  # where little is left, little can be apparent
        ([(0.5, 0.43)], 200, "undecided"),  # clearly too high, but not clearly by a noticeable part
        ([(np.nan, np.nan), (0.6, 0.1)], 500, "agrees"),
    ],
)
def test_robustness_that_remedies_take_away_was_apparent(tmp_path, shares, n, finding):
    names = {"suite": "s", "data": "toys", "model": MATRIX, "diagnostic": "on the training loss", "norm": "linf"}
    lines = [
        {**names, "loss": "training", "eps": 0.1 * place, "naive": naive, "corrected": corrected}
        for place, (naive, corrected) in enumerate(shares, start=1)
    ]
    rows = pd.DataFrame(lines).assign(n=n, status="masked", clean=0.9, summary="", check="reach", proof=False)
    write(tmp_path, "trust", "verdicts", tabulate_verdicts(rows.assign(flagged=True)))
    (line,) = judge_claims(load(tmp_path)).to_dict("records")
    assert line["finding"] == finding and "verdict 'masked'" in line["evidence"]


@pytest.mark.parametrize(
    ("shares", "findings"),
    [
        ({"uniform": 0.4, "dynamic": 0.4, "cnn": 0.1, "self-routing": 0.7}, ["agrees", "agrees", "agrees"]),
        ({"uniform": 0.1, "dynamic": 0.6, "cnn": 0.9, "self-routing": 0.2}, ["differs", "differs", "differs"]),
        ({"uniform": 0.4, "dynamic": 0.5, "cnn": 0.5, "self-routing": 0.5}, ["undecided"] * 3),
    ],
)
def test_routings_are_compared_by_robust_auc(tmp_path, shares, findings):
    write(tmp_path, "routing", "auc", auc_of(shares))
    table = judge_claims(load(tmp_path))
    assert table["finding"].tolist() == findings
    assert table["claim"].tolist() == [
        "self-routing resists attacks better than dynamic routing",
        "capsules with dynamic routing resist attacks better than a CNN",
        "dynamic routing contributes little to robustness",
    ]
    assert table["evidence"].str.contains("n = 200, 3 trainings each; routing of").all()
