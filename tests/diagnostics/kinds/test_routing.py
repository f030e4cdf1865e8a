"""The kind `routing`: tables, Markdown, figure and report of vital signs."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import robustcaps as rc
from robustcaps.diagnostics.kinds.routing import (
    draw,
    draw_routing,
    layer_grids,
    tabulate_interventions,
    tabulate_layers,
)

NAMES = {"suite": "s", "data": "toys", "diagnostic": "routing"}


def rows(model: str, entropies: tuple[float, ...], changed: tuple[bool, ...]) -> pd.DataFrame:
    layers = [
        {"layer": layer, "intervention": "", "index": index, "entropy": entropy, "sigma_ratio": 1.5, "dead": 0.25}
        for layer, entropy in zip(("first", "classes"), entropies, strict=True)
        for index in range(len(changed))
    ]
    network = [
        {"layer": "network", "intervention": name, "index": index, "right": True, "changed": change and name != "none"}
        for name in ("none", "uniform assignments")
        for index, change in enumerate(changed)
    ]
    return pd.DataFrame([*layers, *network]).assign(model=model, **NAMES)


HALF = (True, False)
BOTH = pd.concat([rows("sharp", (0.5, 0.4), HALF), rows("soft", (0.97, 0.4), HALF)], ignore_index=True)


def test_tables_have_a_line_per_layer_and_per_intervention():
    layers, interventions = tabulate_layers(BOTH), tabulate_interventions(BOTH)
    assert layers[["model", "layer", "n", "entropy", "status"]].to_numpy().tolist() == [
        ["sharp", "first", 2, 0.5, "alive"],
        ["sharp", "classes", 2, 0.4, "alive"],
        ["soft", "first", 2, 0.97, "soft"],
        ["soft", "classes", 2, 0.4, "soft"],
    ]
    assert (layers["uniform_changes"] == 0.5).all() and (layers["dead"] == 0.25).all()
    assert interventions["changed"].tolist() == [0, 0.5, 0, 0.5] and (interventions["accuracy"] == 1).all()
    assert (interventions["changed_low"] <= interventions["changed"]).all()
    assert "| toys | sharp | first | 2 | 0.50 | 1.50 | 25 | alive |" in layer_grids(layers)[0].markdown()


def test_the_figure_has_two_panels_per_dataset():
    figure = draw_routing(tabulate_layers(BOTH), tabulate_interventions(BOTH))
    assert [axis.get_title() for axis in figure.axes] == ["toys", "toys: routing partly switched off"]


def stripes(*, split: str, limit: int | None = None, **_: object) -> rc.Data:
    """Bright rows at three heights, and noise."""
    generator = torch.Generator().manual_seed(len(split))
    labels = torch.arange(limit or 24) % 3
    images = 0.3 * torch.rand(len(labels), 1, 20, 20, generator=generator)
    for row, label in enumerate(labels.tolist()):
        images[row, :, 6 * label + 1 : 6 * label + 5] += 0.6
    return rc.Data(images, labels, ("low", "middle", "high"), name="stripes", split=split, size=20)


SUITE = """
[[data]]
use = "stripes"

[[models]]
use = "matrix-capsnet-small"
filters = 4
types = [2, 3, 3]
train = { epochs = 1 }

[[diagnostics]]
use = "routing"
limit = 6
"""


@pytest.mark.usefixtures("registries")
def test_a_suite_asks_for_it_and_the_card_says_it(tmp_path):
    rc.dataset("stripes")(stripes)
    suite = tmp_path / "vitals.toml"
    suite.write_text(SUITE)
    run = rc.run(suite, tmp_path / "o")
    assert not run.failures
    assert {"routing.csv", "routing_interventions.csv", "routing.png"} <= {path.name for path in run.files}
    assert "Is the routing alive?" in (tmp_path / "o" / "report.html").read_text()
    (model,) = run.results.models
    assert model["routing"]["status"] in {"alive", "soft", "inert"}


def attacked(model: str, accuracies: dict[float, float]) -> pd.DataFrame:
    lines = [
        {"eps": eps, "accuracy": share, "accuracy_low": share - 0.1, "accuracy_high": share + 0.1}
        for eps, share in accuracies.items()
    ]
    names = {"suite": "s", "data": "toys", "model": model, "attack": "fgsm", "norm": "linf", "goal": "untargeted"}
    return pd.DataFrame(lines).assign(**names)


def test_of_three_attacked_networks_accuracy_is_drawn_against_sharpness():
    models = {"soft": 0.97, "middle": 0.7, "sharp": 0.4}
    measured = pd.concat([rows(model, (entropy, entropy), HALF) for model, entropy in models.items()])
    summary = pd.concat([attacked(model, {0.0: 0.9, 0.1: 0.5}) for model in models], ignore_index=True)
    tables = {"routing": tabulate_layers(measured), "routing_interventions": tabulate_interventions(measured)}
    tested = pd.DataFrame({"data": "toys", "model": list(models), "error": [5.0, 6.0, 9.0]})
    tested = tested.assign(error_low=tested["error"] - 1, error_high=tested["error"] + 1)
    figures = dict(draw(measured, {**tables, "table": summary, "models": tested}))
    assert list(figures) == ["routing", "sharpness"]
    frontier, axis = figures["sharpness"].axes
    assert frontier.lines[0].get_ydata().tolist() == pytest.approx([0.91, 0.94, 0.95])
    assert [list(line.get_xdata()) for line in axis.lines] == [[0.4, 0.7, 0.97]] * 2
    assert list(dict(draw(measured, {**tables, "table": pd.DataFrame()}))) == ["routing"]
    unknown = dict(draw(measured, {**tables, "table": summary, "models": pd.DataFrame()}))
    assert len(unknown["sharpness"].axes) == 1
