from __future__ import annotations

import csv
import json
import math
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from robustcaps.cli.app import app
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier
from robustcaps.models.cards import read_card, read_tensors, tensors_digest
from robustcaps.models.zoo import build_model, load_model
from robustcaps.registry import DATASETS, MODELS
from robustcaps.training import TrainingProgress, train
from robustcaps.training.checkpoint import LogRow
from robustcaps.training.loop import lr_factor, take_step
from robustcaps.training.samples import add_noise, hold_out, random_batches
from tests import tiny


@pytest.fixture(autouse=True)
def _tiny_things(monkeypatch):
    for registry in (MODELS, DATASETS):
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    tiny.register()


def run(out: Path, model: str = "tiny", **settings):
    return train(model, **{"out": out, "data": "bars", "device": "cpu", **settings})


def weights(folder: Path) -> str:
    (path,) = folder.glob("*-?.safetensors")
    return tensors_digest(read_tensors(path))


BEFORE = ["epoch", "loss", "train_accuracy", "validation_accuracy"]


class RecordedProgress(TrainingProgress):
    """Records all reports; raises KeyboardInterrupt after a given step."""

    def __init__(self, stop: tuple[int, int] = (0, 0)) -> None:
        self.stop = stop
        self.steps: list[tuple[int, int, int]] = []
        self.rates: list[float] = []
        self.epochs: list[LogRow] = []
        self.warnings: list[str] = []

    def step(self, epoch, step, steps, loss, lr):
        assert loss > 0
        self.steps.append((epoch, step, steps))
        self.rates.append(lr)
        if (epoch, step) == self.stop:
            raise KeyboardInterrupt

    def epoch_end(self, epoch, metrics):
        assert metrics["epoch"] == epoch
        self.epochs.append(dict(metrics))

    def warn(self, message):
        self.warnings.append(message)


def test_training_learns_and_leaves_weights_card_and_log(tmp_path):
    progress = RecordedProgress()
    card = run(tmp_path, epochs=8, progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "tiny-a.json", "tiny-a.safetensors"]
    assert json.loads((tmp_path / "tiny-a.json").read_text()) == json.loads(card.model_dump_json())
    assert card.accuracy > 0.9
    assert card.interval[0] <= card.accuracy <= card.interval[1]
    assert card.n_test == 96
    assert card.options == {"width": 4, "fault": ""}
    assert card.command == (
        "robustcaps train tiny --data bars --tag a --seed 0 --epochs 8 --batch-size 16 --lr 0.02 --holdout 1"
    )
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*BEFORE, "predicted_classes", "predictions", "lr", "seconds"]
    assert sum(map(int, rows[-1]["predictions"].split())) == 72
    assert float(rows[-1]["predicted_classes"]) == pytest.approx(3, abs=0.1)
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(1, 9)]
    assert (
        float(rows[-1]["validation_accuracy"]) == card.validation_accuracy == progress.epochs[-1]["validation_accuracy"]
    )
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) / 2
    assert progress.steps == [(epoch, step, 5) for epoch in range(1, 9) for step in range(1, 6)]  # 72 samples of 96
    assert not progress.warnings


def test_the_card_tells_the_accuracy_of_the_file(tmp_path):
    card = run(tmp_path)
    model = load_model("tiny", weights=tmp_path / "tiny-a.safetensors", device="cpu")
    test = tiny.bars(split="test", limit=None)
    right = int((model(test.images).argmax(1) == test.labels).sum())
    assert right == round(card.accuracy * card.n_test)
    assert card.digest == tensors_digest(model.state_dict())
    assert card.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_command_of_a_card_trains_the_same_weights_again(tmp_path):
    hostile = {"adversary_eps": 0.1, "adversary_steps": 2, "noise": 0.1}
    early = {"stop_error": 0.5, "data_options": {"brightness": 0.8}}
    said = {"options": {"width": 3}, "tag": "b", "seed": 5, "epochs": 1, "lr": 0.01, "limit": 40, "half": False}
    card = run(tmp_path / "one", **said, **hostile, **early)
    program, *words = shlex.split(card.command)
    assert program == "robustcaps"
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "two"), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert read_card(tmp_path / "two" / "tiny-b.json").command == card.command
    assert weights(tmp_path / "two") == weights(tmp_path / "one")


def test_noise_is_gaussian_and_not_clipped():
    images = torch.rand(50, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    noisy, again, other = (add_noise(images, 0.25, seed=seed) for seed in (3, 3, 4))
    difference = noisy - images
    assert difference.std() == pytest.approx(0.25, rel=0.02) and abs(difference.mean()) < 0.01
    assert noisy.min() < 0 and noisy.max() > 1
    assert torch.equal(noisy, again) and not torch.equal(noisy, other)


def test_training_with_noise_goes_on_to_the_same_bits_and_is_named_on_the_card(tmp_path):
    card = run(tmp_path / "undisturbed", noise=0.3)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", noise=0.3, progress=RecordedProgress((2, 1)))
    with pytest.raises(UserError, match=r"noise=0\.3 \(requested: None\)"):
        run(tmp_path / "cut")
    run(tmp_path / "cut", noise=0.3)
    run(tmp_path / "plain")
    assert card.noise == 0.3 and "--noise 0.3" in card.command
    assert weights(tmp_path / "cut") == weights(tmp_path / "undisturbed") != weights(tmp_path / "plain")


def test_options_of_the_data_choose_train_and_test_samples(tmp_path):
    dark = {"brightness": 0.25}
    card, bright = run(tmp_path / "dark", data_options=dark, half=False), run(tmp_path / "bright")
    assert (card.data_options, bright.data_options) == (dark, {})
    assert card.data_digest == tiny.bars(split="train", crop=False, **dark).digest != bright.data_digest
    test = tiny.bars(split="test", **dark)
    model = load_model("tiny", weights=tmp_path / "dark" / "tiny-a.safetensors", device="cpu")
    assert card.accuracy == pytest.approx((model(test.images).argmax(1) == test.labels).double().mean().item())


def test_a_training_stops_at_the_first_look_that_finds_its_error_small_enough(tmp_path):
    whole, cut = RecordedProgress(), RecordedProgress()
    run(tmp_path / "whole", epochs=8, progress=whole)
    card = run(tmp_path / "cut", epochs=8, stop_error=0.1, progress=cut)
    assert card.validation_accuracy is not None and card.validation_accuracy >= 0.9
    assert all(row["validation_accuracy"] < 0.9 for row in cut.epochs[:-1])
    assert len(cut.steps) < len(whole.steps)
    assert (cut.steps, cut.rates) == (whole.steps[: len(cut.steps)], whole.rates[: len(cut.steps)])
    assert not cut.warnings


def test_samples_held_out_of_the_test_split_decide_on_the_stop_and_on_nothing_else(tmp_path):
    card = run(tmp_path, holdout=0, holdout_test=36, stop_error=0.1, epochs=8)
    assert (card.validation, card.n_test) == ("the last 36 test samples", 60)
    model = load_model("tiny", weights=tmp_path / "tiny-a.safetensors", device="cpu")
    test = tiny.bars(split="test")
    right = (model(test.images).argmax(1) == test.labels).double()
    assert card.accuracy == pytest.approx(right[:60].mean().item())
    assert card.validation_accuracy == pytest.approx(
        right[60:].mean().item(), abs=1 / 36
    )  # before it was stored in half
    assert card.validation_accuracy >= 0.9
    assert "--holdout 0 --holdout-test 36 --stop-error 0.1" in card.command


def test_a_training_may_stop_within_an_epoch_and_is_measured_there(tmp_path):
    progress = RecordedProgress()
    card = run(tmp_path, stop_error=0.8, progress=progress)
    assert progress.steps == [(1, 1, 5)]  # of five steps, each is looked at
    assert progress.epochs[-1]["validation_accuracy"] == card.validation_accuracy >= 0.2
    assert 0.1 < progress.epochs[-1]["loss"] < 5


def test_a_training_that_never_gets_so_good_ends_with_a_warning(tmp_path):
    progress = RecordedProgress()
    card = run(tmp_path, epochs=1, stop_error=0.0, options={"fault": "collapse"}, progress=progress)
    assert len(progress.steps) == 5
    assert card.validation_accuracy == pytest.approx(1 / 3)
    (warning,) = progress.warnings
    assert "did not reach a validation error of 0.0%: it is 66.7% after all 1 epochs" in warning


@pytest.mark.parametrize("stop", [(1, 1), (2, 2)])
def test_an_interrupted_training_stops_where_it_would_have(tmp_path, stop):
    undisturbed = RecordedProgress()
    run(tmp_path / "undisturbed", stop_error=0.1, progress=undisturbed)
    assert undisturbed.steps[-1][:2] > stop
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", stop_error=0.1, progress=RecordedProgress(stop))
    run(tmp_path / "cut", stop_error=0.1)
    assert weights(tmp_path / "cut") == weights(tmp_path / "undisturbed")


def test_a_stopped_training_killed_before_its_card_does_not_go_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("robustcaps.training.result.wilson", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, stop_error=0.8)
    progress = RecordedProgress()
    run(tmp_path, stop_error=0.8, progress=progress)
    assert not progress.steps


def test_without_a_holdout_there_is_no_validation_accuracy(tmp_path):
    card = run(tmp_path, holdout=0)
    assert card.validation == "nothing held out"
    assert card.validation_accuracy is None
    assert (tmp_path / "log.csv").read_text().splitlines()[1].split(",")[3] == ""


@pytest.mark.parametrize("model", ["tiny", "looker"])
def test_the_seed_decides_the_weights_and_nothing_else_does(tmp_path, model):
    before = torch.get_rng_state()
    run(tmp_path / "one", model, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    run(tmp_path / "two", model, seed=3)
    run(tmp_path / "three", model, seed=4)
    assert weights(tmp_path / "one") == weights(tmp_path / "two") != weights(tmp_path / "three")


def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    run(tmp_path / "undisturbed")
    killed = tmp_path / "killed"
    root = Path(__file__).parents[2]
    script = [sys.executable, "-m", "tests.tiny", str(killed), "3", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    assert subprocess.run(script, cwd=root, env=environment, check=False).returncode == -signal.SIGKILL
    assert (killed / "log.csv").read_text().count("\n") == 3
    progress = RecordedProgress()
    run(killed, progress=progress)
    assert progress.steps[0][:2] == (3, 1)
    assert weights(killed) == weights(tmp_path / "undisturbed")
    assert (killed / "log.csv").read_text().count("\n") == 5


@pytest.mark.parametrize("model", ["tiny", "looker"])
@pytest.mark.parametrize("stop", [(1, 2), (2, 1), (4, 5)])
def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path, model, stop):
    run(tmp_path / "undisturbed", model)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", model, progress=RecordedProgress(stop))
    (tmp_path / "cut" / ".checkpoint.safetensors.tmp").write_bytes(b"half a checkpoi")
    progress = RecordedProgress()
    run(tmp_path / "cut", model, progress=progress)
    assert progress.steps[0][:2] == (stop[0], 1)
    assert weights(tmp_path / "cut") == weights(tmp_path / "undisturbed")


LARGE = ("matrix-capsnet", "vector-capsnet")
ZOO = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
    for name in MODELS.names()
    if MODELS.entry(name).built_in
]


@pytest.mark.parametrize("model", ZOO)
def test_a_resumed_training_of_every_model_of_the_zoo_ends_with_the_same_bits(tmp_path, model):
    """Convolutions are channels_last: so must be their moments, or fused Adam mixes them up."""
    data = {"data": "toys", "limit": 12, "batch_size": 4, "epochs": 3, "holdout": 0, "half": False}
    smaller = {"options": {"width": 8, "hidden": 16}} if model in {"cnn", "cnn-small"} else {}
    run(tmp_path / "undisturbed", model, **data, **smaller)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", model, progress=RecordedProgress((3, 1)), **data, **smaller)
    run(tmp_path / "cut", model, **data, **smaller)
    assert weights(tmp_path / "cut") == weights(tmp_path / "undisturbed")
    logs = [csv.DictReader((tmp_path / name / "log.csv").open()) for name in ("undisturbed", "cut")]
    assert [row["loss"] for row in logs[0]] == [row["loss"] for row in logs[1]]


def test_a_training_killed_before_its_card_only_writes_the_card(tmp_path, monkeypatch):
    run(tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        patch.setattr("robustcaps.training.result.wilson", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut")
    progress = RecordedProgress()
    run(tmp_path / "cut", progress=progress)
    assert not progress.steps
    assert weights(tmp_path / "cut") == weights(tmp_path / "undisturbed")


def test_a_finished_training_is_not_repeated(tmp_path):
    first = run(tmp_path)
    written = (tmp_path / "tiny-a.safetensors").stat().st_mtime_ns
    progress = RecordedProgress()
    assert run(tmp_path, progress=progress) == first
    assert not progress.steps
    assert (tmp_path / "tiny-a.safetensors").stat().st_mtime_ns == written


CHANGES: dict[str, Any] = {
    "lr": 0.5,
    "batch_size": 7,
    "epochs": 2,
    "seed": 9,
    "holdout": 0,
    "limit": 50,
    "options": {"width": 5},
    "data": "plain",
    "data_options": {"brightness": 0.5},
    "stop_error": 0.0,
    "holdout_test": 5,
    "half": False,
}


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_goes_on_with_its_own_settings_only(tmp_path, finished):
    if finished:
        run(tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, progress=RecordedProgress((2, 1)))
    for name, value in CHANGES.items():
        with pytest.raises(
            UserError, match=rf"{name}=.* \(requested: .*; use the same settings or choose another folder"
        ) as caught:
            run(tmp_path, **{name: value}, **({"holdout": 0} if name == "holdout_test" else {}))
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="contains this training already"):
        run(tmp_path, resume=False)


def test_nothing_is_overwritten(tmp_path):
    run(tmp_path)
    with pytest.raises(UserError, match=r"log\.csv exists already"):
        run(tmp_path, tag="b")
    (tmp_path / "log.csv").unlink()
    (tmp_path / "tiny-a.json").unlink()
    with pytest.raises(UserError, match=r"tiny-a\.safetensors exists already"):
        run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot create the folder"):
        run(tmp_path / "file")


def test_a_damaged_checkpoint_is_named(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=RecordedProgress((2, 1)))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: damaged"):
        run(tmp_path)


@pytest.mark.parametrize(("fault", "what"), [("loss", "loss is nan"), ("gradient", "gradient norm is (nan|inf)")])
def test_numbers_that_are_not_finite_stop_the_training_at_once(tmp_path, fault, what):
    with pytest.raises(UserError, match=rf"tiny-a on bars: the {what} at epoch 3, step 2 of 5.*--lr"):
        run(tmp_path, options={"fault": fault})
    assert all(bool(tensor.isfinite().all()) for tensor in read_tensors(tmp_path / "checkpoint.safetensors").values())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"epochs": 0}, "training 'tiny': epochs: .*greater than or equal to 1"),
        ({"batch_size": 0}, "batch_size: .*greater than or equal to 1"),
        ({"lr": -1.0}, "lr: .*greater than 0"),
        ({"seed": -1}, "seed: .*greater than or equal to 0"),
        ({"tag": "a/b"}, "tag: .*pattern"),
        ({"holdout": -1}, "holdout: .*greater than or equal to 0"),
        ({"holdout": 4}, "holdout=4: holding out the last 4 training instances of each class leaves too few"),
        ({"holdout": 10, "data": "plain"}, "holdout=10: .* leaves too few"),
        ({"adversary_eps": -0.1, "adversary_steps": 5}, "training 'tiny': adversary_eps: .*greater than 0"),
        ({"adversary_eps": 0.0, "adversary_steps": 5}, "adversary_eps: .*greater than 0"),
        ({"adversary_eps": 51.0, "adversary_steps": 5}, "adversary_eps: .*less than or equal to 1"),
        ({"adversary_eps": math.nan, "adversary_steps": 5}, "adversary_eps: .*nan"),
        ({"adversary_eps": 0.1, "adversary_steps": 0}, "adversary_steps: .*greater than or equal to 1"),
        ({"adversary_eps": 0.1}, "adversary_steps: adversarial training needs both adversary_eps and adversary_steps"),
        ({"adversary_steps": 5}, "adversary_steps: adversarial training needs both adversary_eps and adversary_steps"),
        ({"stop_error": -0.1}, "stop_error: .*greater than or equal to 0"),
        ({"stop_error": 1.0}, "stop_error: .*less than 1"),
        ({"stop_error": 0.1, "holdout": 0}, "stop_error: needs validation samples; set holdout or holdout_test"),
        ({"holdout_test": 5}, "holdout_test: replaces held-out training samples and requires holdout = 0"),
        ({"holdout_test": 0, "holdout": 0}, "holdout_test: .*greater than or equal to 1"),
        ({"holdout_test": 96, "holdout": 0}, "holdout_test=96: leaves none of the 96 test samples"),
        ({"data_options": {"brihgtness": 2}}, "dataset 'bars': unknown option 'brihgtness'. Did you mean 'brightness'"),
        ({"epoch": 3}, "training 'tiny': unknown option 'epoch'. Did you mean 'epochs'?"),
        ({"seed": 2**31}, "seed: .*less than or equal to 2147483647"),
        ({"options": {"widht": 3}}, "model 'tiny': unknown option 'widht'. Did you mean 'width'?"),
        ({"data": "brs"}, "unknown dataset 'brs'. Did you mean 'bars'?"),
        ({"model": "tyni"}, "unknown model 'tyni'"),
        ({"model": "untrainable"}, "model 'untrainable' cannot be trained"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
    ],
)
def test_what_cannot_be_is_said_in_a_line_and_nothing_is_written(tmp_path, settings, problem):
    with pytest.raises(UserError, match=problem) as caught:
        run(tmp_path / "out", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_held_out_are_the_last_instances_of_each_class():
    data = tiny.bars(split="train", limit=None, crop=False)
    kept, held, words = hold_out(data, 1)
    assert held is not None
    assert words == "the last 1 training instance of each class (24 samples)"
    assert set(kept.factors["instance"]) == {0, 1, 2}
    assert set(held.factors["instance"]) == {3}
    assert held.images.shape[-2:] == (8, 8)
    assert kept.images.shape[-2:] == (12, 12)
    assert len(kept) + len(held) == len(data)


def test_held_out_are_the_last_samples_where_there_are_no_instances():
    data = tiny.draw(90, seed=0, side=8)
    kept, held, words = hold_out(data, 2)
    assert held is not None
    assert torch.equal(kept.images, data.images[:72])
    assert torch.equal(held.images, data.images[72:])
    assert words == "the last 20 % of the training samples (18 samples)"
    assert hold_out(data, 0)[:2] == (data, None)


@given(
    n=st.integers(1, 20),
    steps=st.integers(1, 20),
    size=st.integers(1, 5),
    extra=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_an_epoch_sees_every_sample_once_through_a_window_of_it(n, steps, size, extra, seed):
    steps = min(steps, n)
    height, width = size + extra, size + 1
    images = torch.arange(n * 2 * height * width, dtype=torch.float32).reshape(n, 2, height, width)
    batches = list(random_batches(images, torch.arange(n), size=size, steps=steps, seed=seed))
    lengths = [len(labels) for _, labels in batches]
    assert len(batches) == steps
    assert max(lengths) - min(lengths) <= 1
    assert sorted(label for _, labels in batches for label in labels.tolist()) == list(range(n))
    for crops, labels in batches:
        for crop, label in zip(crops, labels, strict=True):
            corners = [(top, left) for top in range(extra + 1) for left in range(2)]
            assert any(torch.equal(crop, images[label, :, y : y + size, x : x + size]) for y, x in corners)


@given(steps=st.integers(1, 500), warmup=st.integers(0, 300), final=st.floats(0, 1))
def test_the_learning_rate_rises_then_falls_to_its_end(steps, warmup, final):
    factors = [lr_factor(step, steps, warmup_steps=warmup, final_lr=final) for step in range(steps)]
    peak = min(warmup, steps // 5)
    assert factors[peak] == pytest.approx(1)
    assert max(factors) == pytest.approx(1)
    assert min(factors) > 0 or final == 0
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    if steps - peak > 1:
        assert factors[-1] == pytest.approx(final, abs=1e-9)


@pytest.mark.parametrize(("clip", "moved"), [(0.01, 0.01), (None, None)])
def test_the_gradient_is_clipped_to_its_norm(clip, moved):
    model = build_model("tiny", classes=3, channels=1, size=8)
    assert isinstance(model, Classifier)
    data = tiny.draw(30, seed=0, side=8)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    take_step(model, torch.optim.SGD(model.parameters(), lr=1.0), data.images, data.labels, elapsed=0, clip=clip)
    after = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    distance = (after - before).norm().item()
    assert distance == pytest.approx(moved, rel=1e-3) if moved else distance > 0.05


def test_groups_keep_their_own_learning_rates_along_the_schedule(tmp_path, monkeypatch):
    seen = []
    step = torch.optim.AdamW.step

    def note(self):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", note)
    progress = RecordedProgress()
    run(tmp_path, "looker", progress=progress)
    ratios = {round(first / second, 9) for first, second in seen}
    assert len(ratios) == 1
    assert ratios != {1.0}
    assert [rates[1] for rates in seen] == pytest.approx(progress.rates)
    assert max(progress.rates) == pytest.approx(0.02)
    assert min(progress.rates[4:]) == pytest.approx(0.02 * 0.02)


def test_progress_runs_from_zero_towards_one(tmp_path, monkeypatch):
    seen = []
    loss = tiny.Tiny.training_loss

    def note(self, images, labels, progress=1.0):
        seen.append(progress)
        return loss(self, images, labels, progress)

    monkeypatch.setattr(tiny.Tiny, "training_loss", note)
    run(tmp_path)
    assert seen == [step / 20 for step in range(20)]


def test_a_second_training_in_a_folder_at_work_is_refused(tmp_path):
    class SecondTraining(TrainingProgress):
        def started(self, epochs, steps, done):
            with pytest.raises(UserError, match=rf"process {os.getpid()} on .* is at work in this folder"):
                train("tiny", data="bars", out=tmp_path, epochs=1)

    train("tiny", data="bars", out=tmp_path, epochs=1, progress=SecondTraining())
    assert not (tmp_path / ".lock").exists()
