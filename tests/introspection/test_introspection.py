from __future__ import annotations

import base64
import json
import math
import sys
from typing import get_args

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import robustcaps as rc
from robustcaps.analysis.results import Results
from robustcaps.benchmark import run
from robustcaps.capsules.routing import em_steps, fully_connected
from robustcaps.cli.app import main
from robustcaps.inspection import InspectedPart, choose_samples, select_models, write_inspection
from robustcaps.introspection.decoder import OFFSETS
from robustcaps.suite.resolve import Resolver

SIZES = {"classes": 3, "channels": 1, "size": 20}
RULES = {"inverse_temperature": torch.tensor([0.5, 1.0, 1.5]), "variance_floor": 0.01}


def pictures(n: int) -> torch.Tensor:
    return torch.rand(n, 1, 20, 20, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def matrix():
    model = rc.build_model("matrix-capsnet-small", **SIZES, filters=8, types=(2, 3, 4))
    model.initialise(pictures(16))
    return model.eval()


@pytest.fixture(scope="module")
def vector():
    return rc.build_model("vector-capsnet-small", **SIZES).eval()


class Voters(nn.Module):
    """Routes given votes (n, classes, children, pose); an image is but the number of its votes."""

    def __init__(self, votes: torch.Tensor, activations: torch.Tensor) -> None:
        super().__init__()
        self.given, self.activations = votes, activations

    def routing_steps(self, images):
        chosen = images.flatten(1)[:, 0].long()
        types = self.given.shape[1]
        betas = {"beta_a": torch.full((types,), 0.3).double(), "beta_u": torch.full((types,), 0.7).double()}
        children = self.activations[chosen].unsqueeze(2)
        steps = em_steps(
            self.given[chosen].unsqueeze(1), children, fully_connected(children.shape[1]), **RULES, **betas
        )
        return {"classes": list(steps)}


def em_by_hand(votes, activations):
    """One sample, loops over scalars: for every iteration the distances and assignments [class][child]."""
    classes, children, pose = votes.shape
    R = np.full((classes, children), 1 / classes)
    for scale in RULES["inverse_temperature"].tolist():
        log_joint = np.zeros((classes, children))
        distances = np.zeros((classes, children))
        for j in range(classes):
            r = R[j] * activations
            mu = [sum(r[i] * votes[j, i, h] for i in range(children)) / r.sum() for h in range(pose)]
            spread = [sum(r[i] * (votes[j, i, h] - mu[h]) ** 2 for i in range(children)) / r.sum() for h in range(pose)]
            variance = [s + RULES["variance_floor"] for s in spread]
            cost = sum((0.7 + 0.5 * math.log(v)) * r.sum() for v in variance)
            activation = 1 / (1 + math.exp(-scale * (0.3 - cost)))
            for i in range(children):
                squares = [(votes[j, i, h] - mu[h]) ** 2 for h in range(pose)]
                distances[j, i] = math.sqrt(sum(squares))
                density = sum(s / v + math.log(v) for s, v in zip(squares, variance, strict=True))
                log_joint[j, i] = math.log(activation) - 0.5 * density
        yield distances, R
        R = np.exp(log_joint) / np.exp(log_joint).sum(axis=0)


def numbered(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32).view(n, 1, 1, 1).expand(n, 1, 2, 2)


def test_vote_distances_are_those_of_em_by_hand():
    generator = torch.Generator().manual_seed(0)
    votes = torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64)
    activations = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    found = rc.vote_distances(Voters(votes, activations), numbered(2))
    assert list(found.columns) == ["sample", "iteration", "class", "distance", "weight"]
    assert len(found) == 2 * 3 * 3 * 5
    for sample in range(2):
        steps = list(em_by_hand(votes[sample].numpy(), activations[sample].numpy()))
        for t, (distances, assignments) in enumerate(steps, start=1):
            chosen = found[(found["sample"] == sample) & (found["iteration"] == t)]
            assert chosen["class"].tolist() == np.repeat(np.arange(3), 5).tolist()
            np.testing.assert_allclose(chosen["distance"], distances.ravel(), rtol=1e-6)
            np.testing.assert_allclose(chosen["weight"], assignments.ravel(), rtol=1e-6)


def test_identical_votes_lie_at_the_mean():
    votes = torch.randn(1, 3, 1, 4, dtype=torch.float64).expand(1, 3, 6, 4)
    found = rc.vote_distances(Voters(votes, torch.ones(1, 6).double()), numbered(1))
    assert found["distance"].max() < 1e-11
    figure = rc.draw_vote_distances(found.assign(distance=0.0), numbered(1), [1], ("a", "b", "c"))
    assert figure.axes[1].get_xlim() == (0, 1)


def test_votes_are_shared_out_and_measured_to_the_final_poses(matrix):
    images = pictures(3)
    found = rc.vote_distances(matrix, images)
    children = matrix.votes(images).shape[2]
    assert len(found) == 3 * 3 * 3 * children
    np.testing.assert_allclose(found.groupby(["sample", "iteration"])["weight"].sum(), children, rtol=1e-5)
    np.testing.assert_allclose(found[found["iteration"] == 1]["weight"], 1 / 3, rtol=1e-6)
    assert found[found["iteration"] == 2]["weight"].std() > 1e-4
    with torch.no_grad():
        offsets = matrix.votes(images) - matrix.classify(images).poses.unsqueeze(2)
    last = found[found["iteration"] == 3]["distance"]
    np.testing.assert_allclose(last, offsets.norm(dim=-1).flatten(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("inspect", [rc.vote_distances, rc.reconstruct, rc.perturb_capsule])
def test_inspecting_changes_nothing(inspect, matrix, vector):
    model = matrix if inspect is rc.vote_distances else vector
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quiet = inspect(model, pictures(2))
    model.train()
    again = inspect(model, pictures(2))
    assert model.training and all(module.training for module in model.modules())
    model.eval()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (
        quiet.equals(again) if inspect is rc.vote_distances else (torch.equal(quiet, again) and not again.requires_grad)
    )


def test_a_perturbed_capsule_is_moved_in_one_dimension(vector):
    images = pictures(2)
    labels = torch.tensor([2, 0])
    moved = rc.perturb_capsule(vector, images, labels, offsets=[-0.2, 0.0, 0.1])
    assert moved.shape == (2, 16, 3, 1, 20, 20)
    with torch.no_grad():
        poses = vector.classify(images).poses.clone()
        poses[[0, 1], labels, 5] += 0.1
        by_hand = vector.decode(poses, labels)
    torch.testing.assert_close(moved[:, 5, 2], by_hand)
    assert not torch.allclose(moved[:, 5, 2], moved[:, 6, 2])


@pytest.mark.parametrize("labels", [None, torch.tensor([1, 2, 0])])
def test_a_capsule_that_is_not_moved_decodes_to_the_reconstruction(vector, labels):
    images = pictures(3)
    moved = rc.perturb_capsule(vector, images, labels)
    assert moved.shape[1:3] == (16, len(OFFSETS)) and OFFSETS[0] == -0.25 and OFFSETS[5] == 0 and OFFSETS[-1] == 0.25
    copies = rc.reconstruct(vector, images, labels)
    torch.testing.assert_close(moved[:, :, 5], copies.unsqueeze(1).expand(3, 16, 1, 20, 20))
    with torch.no_grad():
        torch.testing.assert_close(copies, vector.reconstruct(images, labels))


def test_reconstructions_are_of_the_predicted_classes_unless_labels_say_otherwise(vector):
    images = pictures(3)
    predicted = vector(images).argmax(1)
    assert torch.equal(rc.reconstruct(vector, images), rc.reconstruct(vector, images, predicted))
    assert not torch.allclose(rc.reconstruct(vector, images), rc.reconstruct(vector, images, (predicted + 1) % 3))


def cnn():
    return rc.build_model("cnn-small", **SIZES)


def blind():
    return rc.build_model("vector-capsnet-small", **SIZES, reconstruction=0.0)


def broken():
    return Voters(torch.full((1, 3, 4, 2), torch.nan).double(), torch.ones(1, 4).double())


REFUSED = {
    "no routing": (rc.vote_distances, cnn, pictures(1), "the model has no EM routing"),
    "not finite": (rc.vote_distances, broken, numbered(1), "are not finite"),
    "no decoder": (rc.perturb_capsule, cnn, pictures(1), "the model has no decoder"),
    "untrained decoder": (rc.reconstruct, blind, pictures(1), "is untrained (reconstruction = 0)"),
    "other images": (
        rc.reconstruct,
        lambda: rc.build_model("vector-capsnet-small", **SIZES),
        torch.rand(1, 1, 32, 32),
        "expects images of shape (1, 20, 20), not (1, 32, 32)",
    ),
    "one image": (
        rc.reconstruct,
        lambda: rc.build_model("vector-capsnet-small", **SIZES),
        pictures(1)[0],
        "images must have shape (n, channels, height, width)",
    ),
}


@pytest.mark.parametrize(("inspect", "make", "images", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_inspected_is_named(inspect, make, images, message):
    with pytest.raises(rc.UserError) as error:
        inspect(make(), images)
    assert message in str(error.value)


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for axis in figure.axes for text in (axis.title, *axis.texts)}


def test_the_routing_figure_has_a_panel_per_image_and_iteration(matrix):
    images, labels = pictures(2), torch.tensor([1, 2])
    found = rc.vote_distances(matrix, images)
    figure = rc.draw_vote_distances(found, images, labels, ("ant", "bee", "cow"))
    assert len(figure.axes) == 2 * (1 + 3)
    panels = [axis for axis in figure.axes if axis.patches]
    assert len(panels) == 2 * 3 and len({axis.get_xlim() for axis in panels}) == 1
    shares = found[found["class"] == 2].groupby(["sample", "iteration"])["weight"].sum() / matrix.votes(images).shape[2]
    assert {"bee", "cow", "iteration 3", "33%", f"{shares[1, 3]:.0%}"} <= texts(figure)


def test_the_tiles_of_the_perturbation_figure_are_the_decoded_images(vector):
    moved = rc.perturb_capsule(vector, pictures(4))
    figure = rc.draw_perturbations(moved, OFFSETS)
    blocks = [np.asarray(axis.images[0].get_array()) for axis in figure.axes if axis.images]
    assert len(blocks) == 4
    for sample, dimension, offset in [(0, 0, 0), (3, 15, 10), (2, 7, 3)]:
        tile = blocks[sample][21 * dimension + 1 : 21 * (dimension + 1), 21 * offset + 1 : 21 * (offset + 1)]
        np.testing.assert_array_equal(tile.squeeze(), moved[sample, dimension, offset, 0])


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_reconstruction_figure_tells_the_error(channels):
    images = torch.full((2, channels, 6, 6), 0.5)
    figure = rc.draw_reconstructions(images, images + torch.tensor([0.1, 0.2]).view(2, 1, 1, 1), ["one", "two"])
    assert {"one", "two", "error 0.0100", "error 0.0400"} <= texts(figure)


def some_data(n: int = 9):
    return rc.Data(pictures(n), torch.tensor([2, 2, 0, 1, 2, 0, 1, 1, 1])[:n], ("a", "b", "c"), name="some")


def test_without_a_choice_the_first_of_three_classes_are_shown():
    assert choose_samples(some_data(), None) == [0, 2, 3]
    assert choose_samples(some_data(3), None) == [0, 2]
    assert choose_samples(some_data(), [8, 1]) == [8, 1]


@pytest.mark.parametrize("wanted", [[9], [-1], list(range(13))])
def test_samples_that_are_not_there_are_refused(wanted):
    with pytest.raises(rc.UserError, match="samples: "):
        choose_samples(some_data(), wanted)


def record(folder, data, models):
    suite = {"name": "s", "data": data, "models": models, "attacks": [{"use": "clean"}]}
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"suite": suite, "cells": []}))


def test_files_of_different_models_have_different_names(tmp_path):
    models = [{"use": "cnn", "name": "a/b"}, {"use": "cnn:a", "name": "a b"}, {"use": "cnn:b"}]
    record(tmp_path, [{"use": "toys"}], models)
    assert [model.name for model in select_models(tmp_path)] == ["a-b", "a-b-2", "cnn-b"]
    record(tmp_path, [{"use": "toys"}, {"use": "mnist", "name": "digits"}], models[2:])
    assert [model.name for model in select_models(tmp_path)] == ["cnn-b-toys", "cnn-b-digits"]
    (tmp_path / "run.json").write_text('{"suite": {}, "cells": []}')
    with pytest.raises(rc.UserError, match=r"run\.json: name: "):
        select_models(tmp_path)


PLUGIN = '''
import torch
import robustcaps as rc


@rc.dataset("specks")
def specks(*, split, limit, data_dir, progress):
    """Noise."""
    images = torch.rand(12, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    return rc.Data(images[:limit], (torch.arange(12) % 3)[:limit], ("ant", "bee", "cow"), name="specks", split=split)


@rc.model("matrices", pretrained=True)
def matrices(*, classes, channels, size):
    """Matrix capsules with the weights they start with."""
    model = rc.build_model(
        "matrix-capsnet-small", classes=classes, channels=channels, size=size, filters=8, types=(2, 3, 4)
    )
    model.initialise(specks(split="test", limit=12, data_dir=None, progress=None).images)
    return model


@rc.model("vectors", pretrained=True)
def vectors(*, classes, channels, size, reconstruction: float = 0.1):
    """Vector capsules with the weights they start with."""
    return rc.build_model(
        "vector-capsnet-small", classes=classes, channels=channels, size=size, reconstruction=reconstruction
    )
'''

SUITE = """
[[data]]
use = "specks"

[[models]]
use = "matrices"

[[models]]
use = "vectors"

[[models]]
use = "vectors"
name = "blind vectors"
reconstruction = 0.0

[[attacks]]
use = "clean"
"""


@pytest.fixture
def specks(tmp_path):
    path = tmp_path / "specks.py"
    path.write_text(PLUGIN)
    return path


def names(*kinds: str) -> set[str]:
    return {f"{kind}.{ending}" for kind in kinds for ending in ("png", "svg")}


@pytest.mark.usefixtures("registries")
def test_figures_of_a_run_show_what_its_models_do(cli, specks, tmp_path):
    (tmp_path / "caps.toml").write_text(SUITE)
    run(tmp_path / "caps.toml", tmp_path / "o", plugins=[specks])
    printed = {}
    for part in ("routing", "decoder"):
        result = cli("inspect", part, "o", "--samples", "4,0", "--plugin", specks)
        assert result.returncode == 0, result.stderr
        printed[part] = result.stdout
    files = {path.name: path.read_bytes() for path in (tmp_path / "o" / "inspection").iterdir()}
    assert set(files) == names("routing-matrices", "perturbation-vectors", "reconstruction-vectors")
    assert "o/inspection/routing-matrices.svg" in printed["routing"]
    assert "not drawn: vectors, blind-vectors: the model has no EM routing" in printed["routing"]
    assert "not drawn: blind-vectors: the decoder is untrained" in printed["decoder"]
    assert b"#4 bee" in files["routing-matrices.svg"] and b"#0 ant" in files["perturbation-vectors.svg"]

    def draw() -> dict[str, bytes]:
        models, parts = select_models(tmp_path / "o"), get_args(InspectedPart)
        written = [write_inspection(part, models, tmp_path / "o", Resolver(), samples=[4, 0]) for part in parts]
        return {path.name: path.read_bytes() for each in written for path in each.files}

    again = draw()
    assert again.keys() == files.keys()
    assert draw() == again
    page = Results(tmp_path / "o").write_report().read_text()
    assert base64.b64encode(files["routing-matrices.svg"]).decode() in page


@pytest.mark.usefixtures("registries")
def test_figures_of_attacks_and_of_models_leave_each_other_alone(specks, tmp_path):
    (tmp_path / "caps.toml").write_text(SUITE)
    out = run(tmp_path / "caps.toml", tmp_path / "o", plugins=[specks]).out
    (out / "figures").mkdir(exist_ok=True)
    (out / "figures" / "old.svg").write_text("of a former run")
    write_inspection("routing", select_models(out), out, Resolver())
    Results(out).write_figures()
    assert not (out / "figures" / "old.svg").exists()
    assert {path.name for path in (out / "inspection").iterdir()} == names("routing-matrices")


CALLS = {
    "routing": (["routing", "--model", "matrices"], "out", names("routing-matrices")),
    "decoder": (
        ["decoder", "there", "--model", "vectors"],
        "there",
        names("reconstruction-vectors", "perturbation-vectors"),
    ),
}


@pytest.mark.parametrize(("words", "out", "files"), CALLS.values(), ids=CALLS)
@pytest.mark.usefixtures("registries")
def test_a_model_is_inspected_without_a_run(monkeypatch, capsys, specks, tmp_path, words, out, files):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["robustcaps", "inspect", *words, "--data", "specks", "--plugin", str(specks)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0, capsys.readouterr().err
    assert {path.name for path in (tmp_path / out / "inspection").iterdir()} == files


BAD_CALLS = {
    "nothing": (["routing"], "name the out folder of a run, or a model with --model."),
    "not a run": (["routing", "nowhere"], "Is nowhere the out folder of `robustcaps run`?"),
    "data of a run": (["routing", "o", "--data", "toys"], "--data, --weights: only with --model"),
    "no number": (["routing", "--model", "cnn", "--samples", "a"], "--samples: 'a' is not a list of sample numbers"),
    "no sample": (["routing", "--model", "matrices", "--samples", "12"], "there is no sample 12 in 'specks'"),
    "no such model": (["routing", "--model", "matrixes"], "unknown model 'matrixes'. Did you mean 'matrices'?"),
    "no routing": (["routing", "--model", "vectors"], "nothing to draw: vectors: the model has no EM routing"),
    "no decoder": (["decoder", "--model", "matrices"], "nothing to draw: matrices: the model has no decoder"),
}


@pytest.mark.parametrize(("words", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
@pytest.mark.usefixtures("registries")
def test_bad_calls_end_with_one_line_and_write_nothing(monkeypatch, capsys, specks, tmp_path, words, message):
    record(tmp_path / "o", [{"use": "specks"}], [{"use": "vectors"}])
    monkeypatch.chdir(tmp_path)
    if "--model" in words:
        words = [*words, "--data", "specks"]
    monkeypatch.setattr(sys, "argv", ["robustcaps", "inspect", *words, "--plugin", str(specks)])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 2 and message in said and said.strip().count("\n") == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"o", "specks.py", "__pycache__"}
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["run.json"]
