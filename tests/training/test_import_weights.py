from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

import robustcaps as rc
from robustcaps.data import export_toys
from robustcaps.errors import UserError
from robustcaps.models.cards import ImportedCard, read_any_card, read_card
from robustcaps.models.hinton2018 import load_released_network
from robustcaps.models.tensorflow_checkpoint import open_checkpoint
from robustcaps.training.import_weights import import_hinton2018
from tests.models.released_checkpoint import CHANNELS, CLASSES, released_variables
from tests.tensorflow_files import write_checkpoint

NAME = "matrix-capsnet-hinton2018"


@pytest.fixture
def checkpoint(tmp_path):
    write_checkpoint(tmp_path / "model.ckpt-1", released_variables())
    return tmp_path / "model.ckpt-1"


def test_imported_weights_load_as_trained_ones_do(tmp_path, checkpoint):
    card = import_hinton2018(checkpoint, out=tmp_path / "out", data_dir=tmp_path / "nowhere", device="cpu")
    weights = tmp_path / "out" / f"{NAME}.safetensors"
    assert read_any_card(weights.with_suffix(".json")) == card
    assert (card.name, card.data, card.data_options["eyes"]) == ("matrix-capsnet:hinton2018", "smallnorb", "both")
    assert (card.accuracy, card.n_test, card.interval) == (None, None, None)
    assert card.evaluation.startswith("not measured: the files of smallnorb were missing")
    assert sorted(card.source_digests) == ["model.ckpt-1.data-00000-of-00001", "model.ckpt-1.index"]
    model = rc.load_model(card.name, weights=weights, device="cpu")
    images = torch.rand(2, CHANNELS, 32, 32)
    assert torch.equal(model(images), load_released_network(open_checkpoint(checkpoint)).model(images))
    with pytest.raises(UserError, match="invalid model card"):
        read_card(weights.with_suffix(".json"))


def test_accuracy_is_measured_where_the_data_is(tmp_path, checkpoint):
    export_toys(tmp_path / "data" / "smallnorb", limit=12)
    card = import_hinton2018(checkpoint, out=tmp_path / "out", data_dir=tmp_path / "data", limit=10, device="cpu")
    model = rc.load_model(card.name, weights=tmp_path / "out" / f"{NAME}.safetensors", device="cpu")
    data = rc.load_data("smallnorb", data_dir=tmp_path / "data", limit=10, **card.data_options)
    assert card.n_test == 10 and card.accuracy == (model(data.images).argmax(1) == data.labels).double().mean()
    assert card.interval is not None and card.interval[0] <= card.accuracy <= card.interval[1]


def test_damaged_data_is_an_error_and_nothing_is_written(tmp_path, checkpoint):
    export_toys(tmp_path / "data" / "smallnorb", limit=2)
    (tmp_path / "data" / "smallnorb" / "SHA256.txt").unlink()
    with pytest.raises(UserError, match="wrong SHA-256"):
        import_hinton2018(checkpoint, out=tmp_path / "out", data_dir=tmp_path / "data")
    assert not (tmp_path / "out").exists()


def test_a_network_for_other_images_is_refused(tmp_path):
    variables = released_variables()
    variables["conv1/weights"] = variables["conv1/weights"][:, :, [0, 1, 0]]
    write_checkpoint(tmp_path / "m", variables)
    with pytest.raises(UserError, match=f"has 3 channels and {CLASSES} classes; expected 1 or 2"):
        import_hinton2018(tmp_path / "m", out=tmp_path / "out")


def test_an_imported_network_runs_in_a_suite(tmp_path, checkpoint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export_toys(tmp_path / "data" / "smallnorb", limit=6)
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f"""
[[data]]
use = "smallnorb"
eyes = "both"
limit = 4
[[models]]
use = "matrix-capsnet:hinton2018"
weights = "out/{NAME}.safetensors"
[[attacks]]
use = "fgsm"
eps = [0.1]
"""
    )
    url = "https://storage.googleapis.com/capsule_toronto/norb_em_checkpoints.tar.gz"
    with pytest.raises(UserError, match=f"no such file. Download {url}, unpack it, and run 'robustcaps import hin"):
        rc.run(suite, device="cpu")
    import_hinton2018(checkpoint, out=tmp_path / "out", data_dir=tmp_path / "nowhere")
    result = rc.run(suite, tmp_path / "run", device="cpu", data_dir=tmp_path / "data")
    assert not result.failures
    (record,) = json.loads((tmp_path / "run" / "run.json").read_text())["models"]
    assert record["accuracy"] is None and record["name"] == "matrix-capsnet"
    models = pd.read_csv(tmp_path / "run" / "models.csv")
    assert models["error"].isna().all() and models["published_error"].tolist() == [1.8]
    assert "| not measured | 1.8 |" in (tmp_path / "run" / "models.md").read_text()


def test_without_a_file_the_error_says_how_to_get_one():
    with pytest.raises(UserError, match=r"is not shipped\. Download https://.* Then set weights \(--weights FILE\)"):
        rc.load_model("matrix-capsnet:hinton2018", data="smallnorb")


def test_a_card_with_a_mistake_is_named(tmp_path, checkpoint):
    import_hinton2018(checkpoint, out=tmp_path, data_dir=tmp_path / "nowhere")
    path = tmp_path / f"{NAME}.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "parameters": 0}))
    with pytest.raises(UserError, match="invalid model card: parameters: "):
        read_any_card(path)
    assert isinstance(ImportedCard.model_validate(fields), ImportedCard)
