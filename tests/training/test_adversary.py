from __future__ import annotations

import csv

import pytest
import torch
from typer.testing import CliRunner

from robustcaps.attacks import Budget, Untargeted, load_attack
from robustcaps.cli.app import app
from robustcaps.errors import UserError
from robustcaps.models.cards import weights_digest
from robustcaps.models.zoo import build_model, load_model
from robustcaps.training.accuracy import accuracy_score, predict_classes
from robustcaps.training.adversary import EPS_WARMUP, Adversary
from robustcaps.utils.sample_random import Draws
from tests import tiny
from tests.training.test_training import RecordedProgress, _tiny_things, run, weights  # noqa: F401

HOSTILE = {"adversary_eps": 0.15, "adversary_steps": 3}


def accuracy_under_pgd(folder, *, eps: float, seed: int = 0) -> float:
    """Return the accuracy of a trained tiny network on the test split, by the benchmark's own attack."""
    model = load_model("tiny", weights=folder / "tiny-a.safetensors", device="cpu")
    test = tiny.bars(split="test")
    draws = Draws(seed, torch.arange(len(test)))
    (proposal,) = load_attack("pgd", eps=eps).sweep(model, test.images, Untargeted(test.labels), [Budget(eps)], draws)
    return accuracy_score(predict_classes(model, proposal.images), test.labels)


def test_adversarial_training_makes_a_network_more_robust_and_its_card_says_how_robust(tmp_path):
    ordinary = run(tmp_path / "ordinary", epochs=12)
    hostile = run(tmp_path / "hostile", epochs=12, seed=1, **HOSTILE)
    assert ordinary.robust_accuracy is None
    assert hostile.robust_accuracy == accuracy_under_pgd(tmp_path / "hostile", eps=0.15, seed=1)
    assert hostile.robust_accuracy > accuracy_under_pgd(tmp_path / "ordinary", eps=0.15) + 0.5
    assert hostile.accuracy > 0.9


def test_the_log_and_the_line_of_an_epoch_tell_the_robust_accuracy(tmp_path):
    command = (
        f"train tiny --data bars --device cpu --epochs 2 --adversary-eps 0.15 --adversary-steps 3 --out {tmp_path}"
    )
    said = CliRunner().invoke(app, command.split())
    assert said.exit_code == 0, said.output
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    shares = [float(row["robust_accuracy"]) for row in rows]
    assert all(0 <= share <= float(row["train_accuracy"]) for share, row in zip(shares, rows, strict=True))
    assert all(f"robust accuracy {share:.4g}" in said.output for share in shares)
    assert "% at eps 0.15" in said.output


@pytest.mark.parametrize("model", ["tiny", "looker"])
@pytest.mark.parametrize("stop", [(1, 2), (3, 1)])
def test_an_interrupted_adversarial_training_goes_on_to_the_same_bits(tmp_path, model, stop):
    run(tmp_path / "undisturbed", model, **HOSTILE)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", model, **HOSTILE, progress=RecordedProgress(stop))
    run(tmp_path / "cut", model, **HOSTILE)
    run(tmp_path / "ordinary", model)
    assert weights(tmp_path / "cut") == weights(tmp_path / "undisturbed") != weights(tmp_path / "ordinary")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, r"adversary_eps=0\.15 \(requested: None\), adversary_steps=3 \(requested: None\)"),
        ({**HOSTILE, "adversary_eps": 0.1}, r"adversary_eps=0\.15 \(requested: 0\.1\)"),
        ({**HOSTILE, "adversary_steps": 4}, r"adversary_steps=3 \(requested: 4\)"),
    ],
)
def test_a_folder_goes_on_with_its_own_adversary_only(tmp_path, settings, problem):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **HOSTILE, progress=RecordedProgress((2, 1)))
    with pytest.raises(UserError, match=rf"a training with {problem}; use the same settings"):
        run(tmp_path, **settings)


@pytest.mark.parametrize(("warmup", "share"), [(0, 0), (0.25, 0.25), (0.5, 0.5), (1, 1), (1 / EPS_WARMUP, 1)])
def test_the_adversary_grows_to_its_full_strength_and_leaves_the_network_as_it_was(warmup, share):
    model = build_model("tiny", classes=3, channels=1, size=8).train()
    data = tiny.draw(30, seed=0, side=8)
    before = weights_digest(model), torch.get_rng_state()
    adversary, elapsed = Adversary(0.2, 4), warmup * EPS_WARMUP
    moved, again, other = (
        adversary.perturb(model, data.images, data.labels, elapsed=elapsed, seed=seed) for seed in (5, 5, 6)
    )
    assert (moved - data.images).abs().max().item() == pytest.approx(0.2 * share, abs=1e-6)
    assert 0 <= moved.min() <= moved.max() <= 1
    assert torch.equal(moved, again)
    assert torch.equal(moved, other) == (share == 0)
    assert weights_digest(model) == before[0]  # with the running statistics: it was asked in eval mode
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_batch_is_asked_for_its_training_loss_once_in_the_mode_of_training(tmp_path, monkeypatch):
    seen = []
    loss = tiny.Tiny.training_loss

    def note(self, images, labels, progress=1.0):
        seen.append((progress, self.training))
        return loss(self, images, labels, progress)

    monkeypatch.setattr(tiny.Tiny, "training_loss", note)
    run(tmp_path, **HOSTILE)
    assert seen == [(step / 20, True) for step in range(20)]


def test_numbers_that_are_not_finite_stop_an_adversarial_training_too(tmp_path):
    problem = r"the loss is nan at epoch 3, step 2 of 5.* \(--lr 0\.007\), a smaller --adversary-eps or another --seed"
    with pytest.raises(UserError, match=problem):
        run(tmp_path, options={"fault": "loss"}, **HOSTILE)
