"""Suites that train their own models, and the table of models beside the published errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from robustcaps.analysis.published import published_error
from robustcaps.benchmark import run
from robustcaps.errors import UserError
from robustcaps.models.zoo import model_options
from robustcaps.suite.spec import DataSpec, ModelSpec, TrainSpec, load_suite
from robustcaps.suite.train_models import select_training_data, training_folder
from robustcaps.training import TrainingProgress, loop
from tests import tiny

SUITE = """
[[data]]
use = "bars"

[[models]]
use = "tiny"
name = "narrow one"
train = { epochs = 2 }

[[models]]
use = "tiny:b"
name = "wide"
width = 6
train = { epochs = 3, seed = 1, lr = 0.01, batch_size = 8, limit = 48, adversary_eps = 0.1, adversary_steps = 2 }

[[attacks]]
use = "fgsm"
eps = [0.0, 0.1]
"""


class Heard(TrainingProgress):
    """Notes which models are trained, and how many epochs of each."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.epochs = 0

    def training(self, name: str) -> None:
        self.names.append(name)

    def epoch_end(self, epoch: int, metrics: object) -> None:
        self.epochs += 1


@pytest.fixture
def trained(registries, tmp_path):
    tiny.register()
    path = tmp_path / "trains.toml"
    path.write_text(SUITE)
    return path


def test_a_suite_trains_its_models_once_and_attacks_them(trained, tmp_path):
    heard, again = Heard(), Heard()
    first = run(trained, tmp_path / "out", training_progress=heard)
    second = run(trained, tmp_path / "out", training_progress=again)
    assert heard.names == again.names == ["narrow one", "wide"]
    assert (heard.epochs, again.epochs) == (5, 0)
    assert (first.computed, second.computed) == (2, 0)
    pd.testing.assert_frame_equal(first.table, second.table)
    cards = [json.loads(path.read_text()) for path in sorted((tmp_path / "out/training").glob("*/*.json"))]
    assert [card["tag"] for card in cards] == ["a", "b"]
    wide = {"epochs": 3, "seed": 1, "lr": 0.01, "batch_size": 8, "limit": 48, "holdout": 0}
    wide |= {"adversary_eps": 0.1, "adversary_steps": 2}
    assert wide.items() <= cards[1].items()
    assert cards[1]["options"]["width"] == 6


def test_the_table_of_models_says_what_their_cards_and_attacks_say(trained, tmp_path):
    made = run(trained, tmp_path / "out")
    cards = [json.loads(path.read_text()) for path in sorted((tmp_path / "out/training").glob("*/*.json"))]
    models = pd.read_csv(tmp_path / "out/models.csv")
    assert models["model"].tolist() == ["narrow one", "wide"]
    assert models["error"].tolist() == pytest.approx([100 * (1 - card["accuracy"]) for card in cards], rel=1e-5)
    assert (models["error_low"] <= models["error"]).all()
    assert (models["error"] <= models["error_high"]).all()
    assert models["published_error"].isna().all()
    attacked = made.table[made.table["eps"] == 0.1]["accuracy"]
    assert models["fgsm linf 0.1"].tolist() == pytest.approx(attacked.tolist(), rel=1e-5)
    page = (tmp_path / "out/models.md").read_text()
    assert f"| bars | wide | {cards[1]['parameters']:,} | {models['error'][1]:.1f} (" in page


def test_a_model_that_collapses_does_not_stop_the_others(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MIN_STEPS_BEFORE_COLLAPSE", 1)
    trained.write_text(SUITE.replace("width = 6", 'width = 6\nfault = "collapse"'))
    made = run(trained, tmp_path / "out")
    assert made.table["model"].unique().tolist() == ["narrow one"]
    (reason,) = made.untrained
    assert re.match("wide: .*collapsed.*standing", reason)


def test_other_settings_are_another_training(trained, tmp_path):
    run(trained, tmp_path / "out")
    trained.write_text(SUITE.replace("epochs = 2", "epochs = 1"))
    heard = Heard()
    run(trained, tmp_path / "out", training_progress=heard)
    assert heard.epochs == 1
    assert len(list((tmp_path / "out/training").iterdir())) == 3


def test_options_of_a_suites_data_are_those_of_its_trainings(trained, tmp_path):
    trained.write_text(SUITE.replace('use = "bars"', 'use = "bars"\nbrightness = 0.25'))
    run(trained, tmp_path / "out")
    cards = [json.loads(path.read_text()) for path in sorted((tmp_path / "out/training").glob("*/*.json"))]
    assert [card["data_options"] for card in cards] == [{"brightness": 0.25}] * 2
    assert cards[0]["data_digest"] == tiny.bars(split="train", crop=False, brightness=0.25).digest


def test_a_training_folder_depends_on_all_options_but_not_on_spelt_out_defaults():
    adversarial, borrowed = {"adversary_eps": 0.1, "adversary_steps": 2}, {"holdout_test": 5}
    changes = (adversarial, {"views": "all"}, borrowed, {**borrowed, "stop_error": 0.1}, {"holdout": 1})
    data, out = DataSpec(use="bars"), Path("out")
    plain, spelt_out, *others = (
        training_folder(ModelSpec(use="tiny", name="wide", train=TrainSpec(epochs=2, **more)), data, out)
        for more in ({}, {"seed": 0, "holdout": 0, "lr": None}, *changes)
    )
    assert plain == spelt_out
    assert re.fullmatch("wide-[0-9a-f]{8}", plain.name) and plain.parent == Path("out/training")
    assert len({plain, *others}) == len(changes) + 1


def test_a_model_is_trained_on_the_data_it_is_for(tmp_path):
    path = tmp_path / "x.toml"
    text = '[[data]]\nuse = "toys"\n[[data]]\nuse = "mnist"\n[[attacks]]\nuse = "clean"\n'
    text += '[[models]]\nuse = "cnn"\ntrain = {}\n[[models]]\nuse = "cnn"\ntrain = {}\ndata = ["mnist"]\n'
    path.write_text(text)
    suite = load_suite(path)
    with pytest.raises(UserError, match=r"needs exactly one dataset, e.g. data = \['toys'\]"):
        select_training_data(suite.models[0], suite)
    assert select_training_data(suite.models[1], suite).use == "mnist"


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "epochs = 2 }",
            'epochs = 2 }\nweights = "some.safetensors"',
            r"models\[0\].*(some.safetensors|exclusive)",
        ),
        ('use = "bars"', 'use = "bars"\n[[data]]\nuse = "plain"', "needs exactly one dataset"),
        ("epochs = 2", "epochs = 0", r"models\[0\].*train.*epochs"),
        ("epochs = 2", "epoch = 2", r"models\[0\].*train.*epoch"),
        ("epochs = 2", "adversary_eps = 0.1", r"models\[0\].*train.adversary_steps: adversarial training needs both"),
        ("epochs = 2", "adversary_eps = -1.0", r"models\[0\].*train.adversary_eps"),
        ("epochs = 2", "stop_error = 0.1", r"models\[0\].*train.stop_error: needs validation samples"),
        ("epochs = 2", "holdout = 1, stop_error = 2", r"models\[0\].*train.stop_error"),
        ("epochs = 2", 'views = "novel-angles"', r"models\[0\].*train.views: .*'familiar-azimuths'"),
        ("epochs = 2", 'views = "novel-azimuths"', r"models\[0\].*dataset 'bars': unknown option 'views'"),
        ('"tiny"', '"untrainable"', r"models\[0\].*cannot be trained"),
        ("width = 6", "breadth = 6", r"models\[1\].*breadth"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is(trained, tmp_path, written, instead, message):
    trained.write_text(SUITE.replace(written, instead, 1))
    with pytest.raises(UserError, match=message):
        run(trained, tmp_path / "out")
    assert not list((tmp_path / "out").glob("training/*/*.safetensors"))


@pytest.mark.parametrize(
    ("model", "options", "error"),
    [
        ("cnn", {}, 5.2),
        ("cnn-small", {}, None),
        ("matrix-capsnet", {}, 1.8),
        ("matrix-capsnet-small", {"iterations": 1}, 9.7),
        ("matrix-capsnet-small", {"iterations": 4}, None),
        ("matrix-capsnet-small", {"poses": "vector", "coordinates": False}, 3.2),
        ("matrix-capsnet-small", {"activation": "mixture"}, 4.5),
        ("matrix-capsnet-small", {"competition": "position"}, None),
        ("vector-capsnet-small", {}, None),
    ],
)
def test_published_errors_belong_to_options(model, options, error):
    assert published_error(model, model_options(model, options)) == error
    assert published_error(model, model_options(model, options), "mnist") is None


def test_the_ablation_suite_has_every_row_of_the_paper():
    suite = load_suite(Path(__file__).parents[2] / "benchmarks" / "ablation.toml")
    found = {
        published_error(spec.use, model_options(spec.use, spec.options)) for spec in suite.models if spec.use != "cnn"
    }
    assert found >= {9.7, 2.2, 1.8, 3.9, 2.9, 2.6, 3.2, 5.8, 4.5}


GROUP = """
[[data]]
use = "bars"

[[models]]
use = "tiny"
name = "narrow"
train = { epochs = 1, seeds = [3, 0] }

[[models]]
use = "tiny"
name = "wide"
width = 6
train = { epochs = 1, seeds = [3, 0] }

[[attacks]]
use = "fgsm"
eps = [0.1, 0.2]

[[attacks]]
use = "bim"
eps = [0.1, 0.2]
models = ["wide", "narrow, seed 3"]
"""


def test_seeds_train_a_group_of_models(registries, tmp_path):
    tiny.register()
    path = tmp_path / "groups.toml"
    path.write_text(GROUP)
    names = ["narrow, seed 3", "narrow, seed 0", "wide, seed 3", "wide, seed 0"]
    assert [(spec.label, spec.group, spec.train.seed) for spec in load_suite(path).models if spec.train] == [
        (name, name.split(",")[0], int(name[-1])) for name in names
    ]
    result = run(path, tmp_path / "out")
    attacked = result.table[result.table["attack"] == "bim"]["model"].unique()
    assert list(attacked) == ["narrow, seed 3", "wide, seed 3", "wide, seed 0"]
    auc = pd.read_csv(tmp_path / "out/auc.csv")
    assert auc["group"].tolist() == ["narrow", "wide"] and auc["models"].tolist() == [2, 2]
    assert (tmp_path / "out/figures/auc.png").exists()
    assert "Robust AUC of groups of models" in (tmp_path / "out/report.html").read_text()
    assert not (tmp_path / "out/comparisons.csv").exists()


def test_a_group_is_trained_as_its_members_would_be(tmp_path):
    group = ModelSpec.model_validate({"use": "tiny", "name": "net", "train": {"epochs": 1, "seeds": [4, 5]}})
    alone = ModelSpec.model_validate({"use": "tiny", "name": "net, seed 5", "train": {"epochs": 1, "seed": 5}})
    data = DataSpec(use="bars")
    assert training_folder(group.members()[1], data, tmp_path) == training_folder(alone, data, tmp_path)


@pytest.mark.parametrize(
    ("train", "problem"),
    [
        ("seeds = [1, 1]", "1 is listed twice"),
        ("seeds = [1]", "at least 2 items"),
        ("seed = 1, seeds = [1, 2]", "mutually exclusive"),
    ],
)
def test_wrong_seeds_are_refused(tmp_path, train, problem):
    path = tmp_path / "groups.toml"
    path.write_text(GROUP.replace("seeds = [3, 0]", train, 1))
    with pytest.raises(UserError, match=rf"groups.toml: models\[0\].*{problem}"):
        load_suite(path)
