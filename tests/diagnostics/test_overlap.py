from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import robustcaps as rc
from robustcaps.capsules.losses import margin_loss, present_classes
from robustcaps.diagnostics.kinds.overlap import tabulate_overlap
from robustcaps.diagnostics.overlap import box_overlap, overlap_rows
from robustcaps.errors import UserError
from robustcaps.training import train
from robustcaps.training.targets import training_targets
from robustcaps.utils.statistics import wilson
from tests.data.test_multimnist import write_mnist

SUITE = """
[[data]]
use = "multimnist"
limit = 30

[[models]]
use = "vector-capsnet-small"
name = "<b>capsules</b>"
reconstruction = 0.0
train = { epochs = 1 }

[[models]]
use = "cnn-small"
train = { epochs = 1 }

[[diagnostics]]
use = "overlap"
"""


def places(*, down, right, other_down=0, other_right=0):
    return pd.DataFrame({"down": down, "right": right, "other_down": other_down, "other_right": other_right})


def test_overlap_is_the_part_of_a_box_that_lies_in_the_other():
    factors = places(down=[0, 4, 4, 4], right=[0, 0, 0, -4], other_down=[0, 0, -4, -4], other_right=[0, 0, 0, 4])
    np.testing.assert_allclose(box_overlap(factors), [1, 0.8, 0.6, 0.36])


def test_found_are_the_classes_among_the_two_strongest():
    def picture(*pixels):
        return torch.tensor(pixels).view(1, 2, 2)

    class Pixels(nn.Module):
        """A class per pixel; no answer to a black image."""

        def forward(self, images):
            pixels = images.flatten(1)
            return pixels / pixels.amax(1, keepdim=True)

    images = [
        picture(0.9, 0.8, 0.1, 0.0),
        picture(0.9, 0.0, 0.8, 0.1),
        picture(0.0, 0.1, 0.9, 0.8),
        picture(0.0, 0, 0, 0),
    ]
    factors = places(down=[0] * 4, right=[0] * 4).assign(other=1)
    data = rc.Data(torch.stack(images), torch.zeros(4, dtype=torch.int64), tuple("abcd"), factors=factors)
    rows = overlap_rows(Pixels(), data, progress=None)
    assert rows["found"].tolist() == [2, 1, 0, 0]
    assert rows[["index", "label", "other", "overlap"]].to_numpy().tolist() == [[i, 0, 1, 1] for i in range(4)]
    with pytest.raises(UserError, match="'data' does not contain pairs of digits: factor 'other' is missing"):
        overlap_rows(Pixels(), rc.Data(data.images, data.labels, data.class_names), progress=None)


def test_the_table_has_all_images_and_thirds_of_them_by_overlap():
    rows = pd.DataFrame(
        {"overlap": np.repeat([0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 2), "found": [0, 1, 1, 2, 0, 2] + [2] * 6}
    )
    rows = rows.assign(suite="s", data="d", model="m", diagnostic="overlap")
    table = tabulate_overlap(rows)
    assert table[["overlap", "n"]].to_numpy().tolist() == [["all", 12], ["40-50", 4], ["60-70", 4], ["80-90", 4]]
    assert table["both"].tolist() == pytest.approx([8 / 12, 1 / 4, 3 / 4, 1])
    assert table["one_or_both"].tolist() == pytest.approx([10 / 12, 3 / 4, 3 / 4, 1])
    assert table.loc[1, ["both_low", "both_high"]].tolist() == pytest.approx([float(end) for end in wilson(1, 4)])


@pytest.mark.parametrize(
    ("labels", "present"),
    [([2, 0], [[0, 0, 1], [1, 0, 0]]), ([[1, 2], [0, 2]], [[0, 1, 1], [1, 0, 1]])],
)
def test_classes_are_present_by_one_label_or_several(labels, present):
    assert present_classes(torch.tensor(labels), 3).tolist() == present


def test_the_losses_know_two_objects():
    images, labels = torch.rand(4, 1, 20, 20), torch.tensor([[0, 1], [1, 2], [0, 2], [1, 2]])
    present = F.one_hot(labels, 3).sum(1).float()
    sizes = {"classes": 3, "channels": 1, "size": 20}
    capsules = rc.build_model("vector-capsnet-small", **sizes, reconstruction=0).eval()
    torch.testing.assert_close(capsules.training_loss(images, labels), margin_loss(capsules.scores(images), present))
    with pytest.raises(UserError, match="set reconstruction = 0"):
        rc.build_model("vector-capsnet-small", **sizes).training_loss(images, labels)
    cnn = rc.build_model("cnn-small", **sizes).eval()
    likelihoods = cnn.scores(images).log().gather(1, labels)
    torch.testing.assert_close(cnn.training_loss(images, labels), -likelihoods.mean(1))


def corners(*, split, limit, data_dir, progress):
    """Two of four corners are bright: two objects."""
    generator = torch.Generator().manual_seed(len(split))
    images = 0.2 * torch.rand(300, 1, 20, 20, generator=generator)
    pairs = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(300)])
    for n, pair in enumerate(pairs.tolist()):
        for corner in pair:
            top, left = 10 * (corner // 2), 10 * (corner % 2)
            images[n, 0, top + 2 : top + 8, left + 2 : left + 8] += 0.7
    factors = pd.DataFrame({"other": pairs[:, 1].numpy()})
    return rc.Data(images[:limit], pairs[:limit, 0], tuple("abcd"), split=split, factors=factors[:limit])


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(("name", "options"), [("cnn-small", {}), ("vector-capsnet-small", {"reconstruction": 0.0})])
def test_networks_learn_both_objects_and_their_cards_count_both(tmp_path, name, options):
    rc.dataset("corners")(corners)
    card = train(name, out=tmp_path, data="corners", options=options, epochs=12, batch_size=16, lr=3e-3)
    model = rc.load_model(name, data="corners", weights=tmp_path / f"{card.stem}.safetensors")
    data = rc.load_data("corners")
    with torch.no_grad():
        strongest, _ = model.eval()(data.images).topk(2).indices.sort()
    both = (strongest == training_targets(data)).all(1).double().mean().item()
    assert card.accuracy == pytest.approx(both) and both > 0.9
    log = pd.read_csv(tmp_path / "log.csv")
    assert log["validation_accuracy"].iloc[-1] > 0.9
    assert sum(map(int, log["predictions"].iloc[-1].split())) == 2 * 270  # two answers to each image of the probe


@pytest.mark.usefixtures("registries")
def test_what_cannot_be_trained_is_said(tmp_path):
    rc.dataset("corners")(corners)
    with pytest.raises(UserError, match="model 'matrix-capsnet-small' cannot be trained on 'corners'"):
        train("matrix-capsnet-small", out=tmp_path, data="corners")
    with pytest.raises(UserError, match="'corners' shows several objects per image, which adversarial"):
        train("cnn-small", out=tmp_path, data="corners", adversary_eps=0.1, adversary_steps=1)


def test_the_second_label_must_be_another_class():
    data = corners(split="test", limit=4, data_dir=None, progress=None)
    assert training_targets(data).tolist() == [
        sorted(pair) for pair in zip(data.labels.tolist(), data.factors["other"], strict=True)
    ]
    data.factors["other"] = data.labels.numpy()
    with pytest.raises(UserError, match="factor 'other' must be a class that differs from the label"):
        training_targets(data)


def test_a_suite_trains_on_two_digits_and_leaves_a_table_a_figure_and_a_page(cli, tmp_path):
    write_mnist(tmp_path)
    suite, out = tmp_path / "overlap.toml", tmp_path / "o"
    suite.write_text(SUITE)
    result = cli("run", suite, "--data-dir", tmp_path, "--out", "o")
    assert result.returncode == 0, result.stdout + result.stderr
    assert {path.name for path in out.iterdir()} == {
        *("cells", "figures", "report.html", "run.json", "training", "overlap.csv", "overlap.md", "overlap.tex")
    }
    assert {path.name for path in (out / "figures").iterdir()} == {"overlap.png", "overlap.svg"}
    table = pd.read_csv(out / "overlap.csv")
    whole = table[table["overlap"] == "all"].set_index("model")
    assert whole["n"].to_dict() == {"<b>capsules</b>": 30, "cnn-small": 30}
    assert table.groupby("model")["n"].sum().tolist() == [60, 60]
    page = (out / "report.html").read_text()
    assert "Two overlapping digits" in page and "Sabour et al. 2017" in page and "<b>capsules" not in page
    assert "capsules with reconstruction 94.8 %, baseline CNN 91.9 %" in (out / "overlap.md").read_text()
    (cell, _) = json.loads((out / "run.json").read_text())["cells"]
    assert cell["kind"] == "overlap" and "eps" not in cell["settings"]["diagnostic"]
