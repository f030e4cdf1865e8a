"""Errors on familiar and novel viewpoints: in a suite that trains its models, in the table and in the figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from robustcaps.benchmark import run
from robustcaps.data.base import Data
from robustcaps.data.viewpoints import Views, rows_of
from robustcaps.diagnostics.kinds.viewpoints import draw_views, tabulate_views, view_grids
from robustcaps.diagnostics.viewpoints import view_rows
from robustcaps.errors import UserError
from robustcaps.models.cards import read_card
from robustcaps.models.zoo import load_weights
from robustcaps.registry import DATASETS
from robustcaps.utils.grid import grids_markdown
from tests import tiny

SUITE = """
[[data]]
use = "turned"
name = "around"

[[data]]
use = "turned"
name = "above"

[[models]]
use = "tiny"
data = ["around"]
train = { epochs = 6, views = "familiar-azimuths", holdout = 1, stop_error = 0.1 }

[[models]]
use = "tiny"
data = ["above"]
train = { epochs = 1, views = "familiar-elevations", holdout_test = 12, stop_error = 0.0 }

[[diagnostics]]
use = "views"
by = "azimuths"
data = ["around"]

[[diagnostics]]
use = "views"
by = "elevations"
data = ["above"]
"""


def turned(*, split: str, limit: int | None = None, crop: bool = True, views: Views = "all", **_: object) -> Data:
    """Bars that are shown in negative at the novel azimuth."""
    data = tiny.bars(split=split, crop=crop)
    number = np.arange(len(data)) // tiny.CLASSES
    angles = {"azimuth": number // 4 % 2 * 180, "elevation": 30 + number // 8 % 2 * 30}
    factors = data.factors.assign(category=data.labels.numpy(), **angles)
    negative = torch.from_numpy(angles["azimuth"] == 180)[:, None, None, None]
    images = torch.where(negative, 1 - data.images, data.images)
    return replace(data, images=images, factors=factors).select(torch.from_numpy(rows_of(factors, views, limit)))


def test_a_suite_trains_on_familiar_views_and_tells_the_errors_on_both(registries, tmp_path):
    tiny.register()
    DATASETS.add("turned", turned)
    suite, out = tmp_path / "views.toml", tmp_path / "out"
    suite.write_text(SUITE)
    made = run(suite, out)
    assert not made.failures
    assert {"views.csv", "views.md", "views.png", "views.svg", "report.html"} <= {path.name for path in made.files}

    table = pd.read_csv(out / "views.csv").set_index("data")
    files = {read_card(path).data_options["views"]: path for path in out.glob("training/*/*.json")}
    test = turned(split="test")
    for name, by, known in (
        ("around", "azimuths", test.factors["azimuth"] == 0),
        ("above", "elevations", test.factors["elevation"] == 30),
    ):
        line, path = table.loc[name], files[f"familiar-{by}"]
        wrong = (load_weights(path.with_suffix(".safetensors"))(test.images).argmax(1) != test.labels).numpy()
        assert (line["familiar"], line["novel"]) == pytest.approx((wrong[known].mean(), wrong[~known].mean()), rel=1e-5)
        assert (line["n_familiar"], line["n_novel"]) == (known.sum(), (~known).sum())
        assert line["familiar_low"] <= line["familiar"] <= line["familiar_high"]
        card = read_card(path)
        assert card.data_digest == turned(split="train", crop=False, views=card.data_options["views"]).digest
        assert card.n_test == known.sum() - (card.holdout_test or 0)
        assert (line["trained_on"], line["wanted"]) == (f"familiar-{by}", card.stop_error)
        assert line["reached"] == pytest.approx(1 - card.validation_accuracy, rel=1e-5)
    assert (
        table.loc["around", "reached"] <= 0.1 and table.loc["around", "novel"] > table.loc["around", "familiar"] + 0.2
    )
    assert "Novel viewpoints" in (out / "report.html").read_text()
    assert run(suite, out).computed == 0


class Bright(nn.Module):
    """Answers 1 to bright images, 0 to dark ones, and nothing finite to black ones."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = images.flatten(1).mean(1, keepdim=True)
        return torch.cat([0.5 - mean, mean - 0.5], 1) / (mean > 0)


def test_rows_say_which_views_are_familiar_and_which_answers_right():
    images = torch.tensor([0.0, 0.2, 0.9, 0.8])[:, None, None, None].expand(4, 1, 2, 2)
    factors = pd.DataFrame({"azimuth": [0, 40, 60, 300], "elevation": [30, 45, 40, 70]})
    data = Data(images, torch.tensor([0, 0, 0, 1]), ("dark", "bright"), factors=factors)
    around, above = (view_rows(Bright(), data, progress=None, by=by) for by in ("azimuths", "elevations"))
    assert around["answer"].tolist() == [-1, 0, 1, 1]
    assert around["right"].tolist() == above["right"].tolist() == [False, True, False, True]
    assert around["familiar"].tolist() == [True, True, False, True]
    assert above["familiar"].tolist() == [True, False, True, False]
    with pytest.raises(UserError, match="the data has no factor for azimuths"):
        view_rows(Bright(), replace(data, factors=pd.DataFrame()), progress=None, by="azimuths")


def rows(model: str, by: str, familiar: list[bool], right: list[bool]) -> pd.DataFrame:
    names = {"suite": "s", "data": "toys", "model": model, "diagnostic": "views", "by": by}
    return pd.DataFrame({"familiar": familiar, "right": right}).assign(**names)


ROWS = pd.concat(
    [
        rows("one", "elevations", [True] * 4 + [False] * 2, [True, True, True, False, False, True]),
        rows("<two>", "azimuths", [True] * 3, [True] * 3),
    ]
)
TRAINED = {"label": "one", "data": "toys", "data_options": {"views": "familiar-elevations"}, "stop_error": 0.1}
MODELS = [{**TRAINED, "validation_accuracy": 0.75}, {"label": "<two>", "data": "toys"}]


def test_the_table_has_wilson_intervals_and_the_published_errors_after_each_angle():
    table = tabulate_views(ROWS, MODELS)
    assert table["by"].tolist() == ["elevations"] * 3 + ["azimuths"] * 3
    one, *published = table.to_dict("records")[:3]
    assert [one[name] for name in ("n_familiar", "familiar", "n_novel", "novel")] == [4, 0.25, 2, 0.5]
    assert (one["familiar_low"], one["familiar_high"]) == pytest.approx((0.0456, 0.6994), abs=1e-4)
    assert [(line["data"], line["familiar"], line["novel"]) for line in published] == [
        ("smallNORB", 0.043, 0.178),
        ("smallNORB", 0.043, 0.123),
    ]
    page = grids_markdown(view_grids(table))
    assert "| elevations | toys | one | familiar-elevations | 25.0 (10) | 25.0 (5-70) | 50.0 (9-91) | 4 | 2 |" in page
    assert "| azimuths | toys | <two> | all |  | 0.0 (0-56) |  | 3 | 0 |" in page
    assert "| azimuths | smallNORB | CNN | familiar-azimuths |  | 3.7 | 20.0 |  |  |" in page


def test_the_figure_has_a_panel_per_angle_and_two_bars_per_model():
    figure = draw_views(tabulate_views(ROWS, MODELS))
    assert [axis.get_title() for axis in figure.axes] == ["novel elevations (toys)", "novel azimuths (toys)"]
    first, second = figure.axes
    assert first.get_yticklabels()[0].get_text() == "one"
    assert [bar.get_width() for bar in first.patches] == pytest.approx([25, 4.3, 4.3, 50, 17.8, 12.3])
    assert len(second.patches) == 6
