from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import robustcaps as rc
from robustcaps.diagnostics.kinds.gradients import tabulate_gradients
from robustcaps.diagnostics.kinds.verdict import tabulate_verdicts
from robustcaps.errors import UserError

SUITE = """
[[data]]
use = "dots"
limit = 40

[[models]]
use = "levels"

[[models]]
use = "rounding"
name = "<b>hidden</b>"

[[diagnostics]]
eps = [0.12, 0.15]
limit = 30

[[diagnostics]]
use = "zero-gradient"
eps = 0.05
models = ["levels"]

[[diagnostics]]
use = "gradients"
limit = 20
"""
MASKED = '''

class Rounded(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model((images * 64).round() / 64)


@rc.model("rounding", pretrained=True)
def rounding(*, classes, channels, size):
    """Rounds images first, so that no gradient passes."""
    return Rounded(levels(classes=classes, channels=channels, size=size))


@rc.diagnostic("too-bright", source="this test", remedy="Draw the blinds.")
def too_bright(model, data, eps, *, most: float = 0.2):
    """Whether images are bright."""
    mean = float(data.images.mean())
    return rc.Finding(mean > most, mean, most, f"the mean is {mean:.2f}")
'''


def test_a_suite_of_diagnostics_leaves_verdicts_checks_gradients_figures_and_a_page(cli, plugin, tmp_path):
    plugin.write_text(plugin.read_text() + MASKED)
    suite, out = tmp_path / "trust.toml", tmp_path / "o"
    suite.write_text(SUITE)
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 0, result.stderr
    assert {path.name for path in out.iterdir()} == {
        *("cells", "figures", "report.html", "run.json"),
        *(f"{name}.{ending}" for name in ("verdicts", "checks", "gradients") for ending in ("csv", "md", "tex")),
    }
    names = {f"{name}.{ending}" for name in ("verdicts", "gradients") for ending in ("png", "svg")}
    assert {path.name for path in (out / "figures").iterdir()} == names
    assert "Verdicts: robust accuracy" in result.stdout and "masked" in result.stdout

    verdicts = pd.read_csv(out / "verdicts.csv", keep_default_na=False)
    by_all = verdicts[verdicts["diagnostic"] == "verdict"].set_index(["model", "eps"])
    assert set(by_all.loc["<b>hidden</b>", "status"]) == {"masked"}
    assert (by_all["n"] == 30).all() and (by_all["corrected"] <= by_all["naive"]).all()
    assert (by_all["corrected_low"] <= by_all["corrected"]).all() and by_all["confidence"].astype(float).between(
        0, 1
    ).all()
    assert "zero-gradient!" in by_all.loc[("<b>hidden</b>", 0.15), "flagged"]
    alone = verdicts[verdicts["diagnostic"] == "zero-gradient"]
    assert alone["model"].tolist() == ["levels"] and alone["status"].tolist() == ["trusted"]
    checks = pd.read_csv(out / "checks.csv")
    assert set(checks.loc[checks["diagnostic"] == "verdict", "check"]) == {*rc.list_diagnostics(), "too-bright"}

    gradients = pd.read_csv(out / "gradients.csv").set_index("model")
    assert gradients.loc["levels", "zeros"] == 0 and gradients.loc["<b>hidden</b>", "none"] == 1
    page = (out / "report.html").read_text()
    assert "Can these numbers be trusted?" in page and "Gradients by loss" in page and "<b>hidden" not in page
    assert {"verdicts", "gradient-zeros"} <= set(re.findall(r'data-chart="([^"]+)"', page))

    again = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert "Nothing to compute: all 7 cells were finished before" in again.stdout
    assert "**masked**" in cli("table", "o", "--markdown").stdout

    assert cli("run", suite, "--plugin", plugin, "--out", "p").returncode == 0
    assert (out / "checks.csv").read_bytes() == (tmp_path / "p" / "checks.csv").read_bytes()


def test_a_model_that_cannot_be_diagnosed_is_a_row_not_a_failure(cli, plugin, tmp_path):
    plugin.write_text(
        plugin.read_text()
        + "\n\n@rc.model('constant', pretrained=True)\ndef constant(*, classes, channels, size):\n"
        + "    '''Always the same.'''\n    model = levels(classes=classes, channels=channels, size=size)\n"
        + "    torch.nn.init.zeros_(model[1].weight)\n    return model\n"
    )
    suite = tmp_path / "x.toml"
    suite.write_text('[[data]]\nuse = "dots"\n[[models]]\nuse = "constant"\n[[diagnostics]]\n')
    result = cli("run", suite, "--plugin", plugin, "--out", "o")
    assert result.returncode == 0, result.stderr
    (line,) = json.loads(pd.read_csv(tmp_path / "o" / "verdicts.csv").to_json(orient="records"))
    assert line["status"] == "suspicious" and line["naive"] is None and "for every image" in line["summary"]


def test_gradients_are_those_of_the_loss():
    model = rc.build_model("cnn-small", classes=3, channels=1, size=12)
    images, labels = torch.rand(70, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(70) % 3
    rows = rc.measure_gradients(model, (images, labels))
    assert rows["loss"].value_counts().to_dict() == {"logits": 70, "scores": 70, "training": 70}
    images.requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model.eval()(images), labels, reduction="sum"), images)
    own = rows[rows["loss"] == "logits"]
    np.testing.assert_allclose(own["l2"], gradient.flatten(1).norm(dim=1), rtol=1e-4)
    np.testing.assert_allclose(own["zeros"], (gradient == 0).flatten(1).double().mean(1))
    assert own["finite"].all()


def test_gradients_of_a_foreign_model_are_those_of_its_logits():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
    data = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 0, 1, 0])
    assert set(rc.measure_gradients(model, data)["loss"]) == {"logits"}
    with pytest.raises(UserError, match=r"this model has no loss 'training'. Choose from: logits"):
        rc.measure_gradients(model, data, losses=["training"])


def gradient_rows(model: str, l2: list[float], zeros: list[float]) -> pd.DataFrame:
    names = {"suite": "s", "data": "d", "model": model, "diagnostic": "gradients", "loss": "logits"}
    return pd.DataFrame({"l2": l2, "zeros": zeros, "finite": True}).assign(**names)


def test_gradient_tables_count_zeros_and_orders_below_the_first_model():
    rows = pd.concat([gradient_rows("one", [1.0, 10.0, 100.0], [0.0, 0.5, 1.0]), gradient_rows("two", [0.1], [0.25])])
    table = tabulate_gradients(rows).set_index("model")
    assert table.loc["one", ["zeros", "none", "log10_l2", "orders"]].tolist() == pytest.approx([0.5, 1 / 3, 1.0, 0.0])
    assert table.loc["two", ["zeros", "none", "log10_l2", "orders"]].tolist() == pytest.approx([0.25, 0.0, -1.0, 2.0])


def test_verdict_tables_have_wilson_intervals():
    names = {"suite": "s", "data": "d", "model": "m", "diagnostic": "v", "norm": "linf", "eps": 0.1, "loss": "ce"}
    rows = pd.DataFrame({"check": ["reach", "unbounded"], "flagged": [True, True], "proof": [False, True]})
    rows = rows.assign(**names, n=30, status="masked", clean=1.0, naive=0.5, corrected=0.0, summary="Masked.")
    (line,) = tabulate_verdicts(rows).to_dict("records")
    assert line["flagged"] == "reach unbounded!"
    assert line["clean_low"] == pytest.approx(0.8865, abs=1e-4) and line["corrected_high"] == pytest.approx(
        0.1135, abs=1e-4
    )
