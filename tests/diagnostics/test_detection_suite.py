from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

import robustcaps as rc
from robustcaps.analysis.results import Results
from robustcaps.diagnostics.detection import detection_rows
from robustcaps.diagnostics.kinds.detection import tabulate_detection
from robustcaps.diagnostics.kinds.lookup import diagnostic_options
from robustcaps.diagnostics.reconstruction_detector import reconstruction_errors
from robustcaps.errors import UserError
from robustcaps.utils.statistics import wilson
from tests.diagnostics.test_reconstruction_detector import Inker

PAINTER = '''

class Painter(nn.Module):
    """Tells 'dots' by their brightness, and remembers nothing else of an image."""

    reconstruction = 1.0

    def __init__(self, levels):
        super().__init__()
        self.levels = levels

    def classify(self, images):
        logits = self.levels(images)
        poses = images.mean((1, 2, 3))[:, None, None].expand(-1, logits.shape[1], 1)
        return ClassifierOutput(logits=logits, scores=logits.softmax(1), poses=poses)

    def forward(self, images):
        return self.classify(images).logits

    def decode(self, poses, labels):
        return poses[:, :1, :, None].expand(-1, 1, 6, 6)


@rc.model("painter", pretrained=True)
def painter(*, classes, channels, size):
    """Levels with a decoder."""
    return Painter(levels(classes=classes, channels=channels, size=size))


@rc.attack("blot")
def blot(model, images, labels, eps, columns: int = 3):
    """Darkens some columns by eps."""
    found = images.clone()
    found[..., :columns] -= eps
    return found.clamp(0, 1)
'''
SUITE = """
[[data]]
use = "dots"

[[models]]
use = "painter"
name = "<b>painter</b>"

[[models]]
use = "levels"

[[diagnostics]]
use = "detection"
eps = [0.01, 0.3]
limit = 60
attacks = ["darken", { use = "blot", name = "half dark" }]
models = ["<b>painter</b>"]
"""


@pytest.fixture
def painter(plugin):
    text = plugin.read_text().replace(
        "import nn\n", "import nn\nfrom robustcaps.models.base import ClassifierOutput\n", 1
    )
    plugin.write_text(text + PAINTER)
    return plugin


def test_a_suite_tells_what_gets_past_classifier_and_detector(cli, painter, tmp_path):
    suite, out = tmp_path / "detect.toml", tmp_path / "o"
    suite.write_text(SUITE)
    result = cli("run", suite, "--plugin", painter, "--out", "o")
    assert result.returncode == 0, result.stdout + result.stderr
    assert {path.name for path in out.iterdir()} == {
        *("cells", "figures", "report.html", "run.json", "detection.csv", "detection.md", "detection.tex")
    }
    assert {path.name for path in (out / "figures").iterdir()} == {"detection.png", "detection.svg"}

    table = pd.read_csv(out / "detection.csv").set_index(["attack", "eps"])
    assert (table["n"] == 30).all()  # the other thirty set the threshold
    assert table.loc[("darken", 0.01), "success"] == table.loc[("half dark", 0.01), "success"] == 0
    assert table.loc[("darken", 0.01), ["detected", "detected_low"]].isna().all()
    for attack in ("darken", "half dark"):  # the darkest third of the images has nowhere to go
        assert table.loc[(attack, 0.3), "success"] == pytest.approx(2 / 3)
    assert table.loc[("half dark", 0.3), "detected"] == 1 and table.loc[("half dark", 0.3), "undetected"] == 0
    rows = Results(out).rows("detection").query("eps in (0, 0.3)").drop_duplicates(["attack", "index"])
    flagged = rows.pivot_table(index="index", columns="attack", values="flagged", aggfunc="first")
    moved = rows.loc[(rows["attack"] == "darken") & rows["fooled"], "index"]
    assert flagged.loc[moved, "darken"].equals(flagged.loc[moved, "clean"].rename("darken"))  # as rough as before
    assert table["false_alarms"].tolist() == pytest.approx([flagged["clean"].mean()] * 4)

    page = (out / "report.html").read_text()
    assert "Past the detector" in page and "half dark" in page and "<b>painter" not in page
    assert (
        "| half dark | 0.3 linf | 30 | 66.7 (49-81) | 100.0 (84-100) | 0.0 (0-11) |"
        in (out / "detection.md").read_text()
    )
    again = cli("run", suite, "--plugin", painter, "--out", "o")
    assert "Nothing to compute: all 2 cells were finished before" in again.stdout

    ids = {cell["id"] for cell in json.loads((out / "run.json").read_text())["cells"]}
    painter.write_text(painter.read_text().replace("-= eps", "-= 0.5 * eps"))
    planned = cli("check", suite, "--plugin", painter).stdout  # other code, other cells
    assert "detection eps 0.3" in planned and not any(name in planned for name in ids)


def test_a_model_without_a_decoder_is_named(cli, painter, tmp_path):
    suite = tmp_path / "detect.toml"
    suite.write_text(SUITE.replace('models = ["<b>painter</b>"]', 'models = ["levels"]'))
    result = cli("run", suite, "--plugin", painter, "--out", "o")
    assert result.returncode == 1
    output = result.stdout + result.stderr
    assert "levels / dots / detection eps 0.3" in output
    assert "Sequential does not support detection: the model has no decoder" in output


def test_the_threshold_comes_from_images_that_are_not_attacked():
    images = torch.rand(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    images[30:] *= 0.1
    data = rc.Data(images, Inker()(images).argmax(1), ("dark", "bright"))
    settings = {"eps": 0.1, "norm": "linf", "seed": 0, "progress": None}
    rows = detection_rows(Inker(), data, **settings, attacks=["noise"], quantile=0.5, validation=0.25)
    assert sorted(set(rows["index"])) == list(range(30)) and set(rows["attack"]) == {"clean", "noise"}
    expected = reconstruction_errors(Inker(), images[30:]).quantile(0.5).item()
    assert rows["threshold"].tolist() == pytest.approx([expected] * 60) and set(rows["validated_on"]) == {10}
    assert rows["flagged"].tolist() == (rows["error"] > rows["threshold"]).tolist()
    with pytest.raises(UserError, match=r"validation: 0\.001 of 40 images leaves no image"):
        detection_rows(Inker(), data, **settings, validation=0.001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacks": []}, "attacks: value should have at least 1 item"),
        ({"attacks": ["fgms"]}, "unknown attack 'fgms'"),
        ({"attacks": [{"steps": 3}]}, "must name an attack with 'use'"),
        ({"attacks": [{"use": "bim", "stpes": 3}]}, "attack 'bim': unknown option 'stpes'"),
        ({"attacks": [{"use": "bim", "eps": 0.1}]}, "'bim' must not set eps"),
        ({"attacks": ["bim", {"use": "bim", "steps": 3}]}, "the name 'bim' is already taken"),
        ({"attacks": ["clean"]}, "the name 'clean' is already taken"),
        ({"attacks": [{"use": "transfer", "surrogate": "cnn"}]}, "needs surrogate models"),
        ({"quantile": 95}, "quantile: input should be less than 1"),
        ({"validation": 0}, "validation: input should be greater than 0"),
    ],
)
def test_mistakes_are_named_before_anything_is_run(options, message):
    with pytest.raises(UserError, match=message):
        diagnostic_options("detection", options)


def test_shares_are_of_all_images_and_detected_of_the_fooled():
    names = {"suite": "s", "data": "d", "model": "m", "diagnostic": "detection", "goal": "untargeted", "unit": "pixel"}
    clean = pd.DataFrame({"index": range(10), "fooled": [True] + [False] * 9, "flagged": [False] * 9 + [True]})
    bim = pd.DataFrame({"index": range(10), "fooled": [True] * 8 + [False] * 2, "flagged": [True] * 2 + [False] * 8})
    clean, bim = clean.assign(attack="clean", eps=0.0), bim.assign(attack="bim", eps=0.1)
    rows = pd.concat([clean, clean, bim]).assign(norm="linf", **names)  # clean images are looked at for every eps
    (line,) = tabulate_detection(rows.assign(undetected=rows["fooled"] & ~rows["flagged"])).to_dict("records")
    assert (line["attack"], line["n"]) == ("bim", 10)
    shares = {"success": (8, 10), "detected": (2, 8), "undetected": (6, 10), "false_alarms": (1, 10)}
    for share, (k, n) in shares.items():
        assert line[share] == pytest.approx(k / n)
        assert [line[f"{share}_low"], line[f"{share}_high"]] == pytest.approx([float(end) for end in wilson(k, n)])
