from __future__ import annotations

import json

import pandas as pd
import pytest

import robustcaps as rc
from robustcaps.diagnostics.kinds.certify import certified_grids, empirical_lines, tabulate_certified

SUITE = """
[[data]]
use = "toys"
limit = 4

[[models]]
use = "cnn-small"
name = "<b>cnn</b>"

[[attacks]]
use = "fgsm"
norm = "l2"
eps = [0.1, 0.4]

[[diagnostics]]
use = "certify"
sigma = 0.05
n0 = 10
n = 40
alpha = 0.01
limit = 3
"""


def certificates(radius, correct, *, model="m", sigma=0.5, max_radius=1.2):
    names = {"suite": "s", "data": "d", "model": model, "diagnostic": "certify"}
    prediction = [-1 if r == 0 else 0 for r in radius]
    columns = {"radius": radius, "correct": correct, "prediction": prediction, "index": range(len(radius))}
    return pd.DataFrame({**columns, "sigma": sigma, "max_radius": max_radius, "n": 1000, "alpha": 0.001}).assign(
        **names
    )


def test_certified_accuracy_counts_correct_predictions_by_radius():
    table = tabulate_certified(certificates([1.2, 0.5, 0.3, 0.9, 0.0], [True, True, True, False, False]))
    assert table["radius"].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert table["certified"].tolist() == [0.6, 0.6, 0.4, 0.2, 0.2]
    assert (table["certified_low"] <= table["certified"]).all() and (
        table["certified"] <= table["certified_high"]
    ).all()
    assert table["mean_radius"].unique() == pytest.approx([(1.2 + 0.5 + 0.3) / 5])
    assert table["abstained"].unique() == pytest.approx([0.2])


def test_readers_get_a_grid_per_sigma_and_a_line_per_model():
    parts = [certificates([1.0], [True], model=model, sigma=sigma) for model in "ab" for sigma in (0.25, 0.5)]
    grids = certified_grids(tabulate_certified(pd.concat(parts)))
    assert [len(grid.rows) for grid in grids] == [2, 2]
    assert ["sigma 0.25" in grids[0].title, "sigma 0.5" in grids[1].title] == [True, True]
    assert grids[1].columns[-1] == "certified % at 1"


def test_the_empirical_line_is_the_worst_of_all_l2_attacks_up_to_each_eps():
    names = {"suite": "s", "data": "d", "model": "m", "unit": "pixel", "goal": "untargeted"}
    lines = [("l2", "a", 0.5, 0.9), ("l2", "b", 0.5, 0.7), ("l2", "a", 1.0, 0.8), ("linf", "a", 0.5, 0.1)]
    table = pd.DataFrame([{**names, "norm": n, "attack": a, "eps": e, "accuracy": r} for n, a, e, r in lines])
    assert empirical_lines({"table": table})[["eps", "accuracy"]].to_numpy().tolist() == [[0.5, 0.7], [1.0, 0.7]]
    assert empirical_lines({"table": pd.DataFrame()}).empty


@pytest.mark.parametrize("attacked", [True, False])
def test_a_run_has_table_figures_and_section_and_security_curves_where_attacks_are(tmp_path, attacked):
    suite = tmp_path / "suite.toml"
    before, _, after = SUITE.partition('[[attacks]]\nuse = "fgsm"\nnorm = "l2"\neps = [0.1, 0.4]\n')
    suite.write_text(SUITE if attacked else before + after)
    rc.run(suite, out=tmp_path / "out")
    results = rc.load_results(tmp_path / "out")
    rows = results.rows("certify")
    assert len(rows) == 3 and (rows["sigma"] == 0.05).all() and (rows["n"] == 40).all()
    figures = {path.stem for path in (tmp_path / "out" / "figures").glob("*.svg")}
    assert "certified" in figures and ("security" in figures) == attacked
    assert (tmp_path / "out" / "certified.md").is_file() and not results.tables["certified"].empty
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Certified accuracy by randomised smoothing" in page and "<b>cnn</b>" not in page
    assert json.loads((tmp_path / "out" / "run.json").read_text())["cells"][-1]["kind"] == "certify"


@pytest.mark.parametrize("option", ["sigma = 0", "sigma = -1", "n = 0", "alpha = 1.0", "batch = 0", "copies = 3"])
def test_options_are_checked(tmp_path, option):
    suite = tmp_path / "suite.toml"
    kept = [line for line in SUITE.splitlines() if line.partition(" ")[0] != option.partition(" ")[0]]
    suite.write_text("\n".join([*kept, option]))
    with pytest.raises(rc.UserError, match=rf"diagnostics\[0\].*{option.partition(' ')[0]}"):
        rc.run(suite, out=tmp_path / "out")
