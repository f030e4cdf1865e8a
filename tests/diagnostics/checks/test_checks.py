from __future__ import annotations

import functools
import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import robustcaps as rc
from benchmarks.calibration.defences import (
    AveragingEnsemble,
    BlendedOutputs,
    InputTransform,
    OutputTransform,
    SubstituteGradient,
    rounded,
    shattered,
    with_backward,
)
from benchmarks.calibration.networks import EPS, blobs, mlp, train
from robustcaps.diagnostics.checks.context import BaselineSettings, DiagnosisContext
from robustcaps.diagnostics.checks.inner_logits import find_inner_logits
from robustcaps.errors import UserError
from robustcaps.registry import DIAGNOSTICS

DATA = blobs(30, seed=2)
SECTION_6 = {
    *("zero-gradient", "gradient-scale", "saturated-loss", "randomised", "one-step-beats-iterative"),
    *("black-box-beats-white-box", "noise-beats-gradient", "eps-monotone", "unbounded", "steps-converged"),
    *("silent-success", "loss-surface", "finite-difference", "reach", "validity"),
}


@functools.cache
def net() -> nn.Module:
    return train(mlp)


def transform_input(transform) -> nn.Module:
    return InputTransform(transform, net())


def transform_output(transform) -> nn.Module:
    return OutputTransform(net(), transform)


def transform_gradient(transform) -> nn.Module:
    return transform_input(with_backward(lambda x: x.clone(), transform))


def make_context(model: nn.Module) -> DiagnosisContext:
    baseline = BaselineSettings("ce", 20, 0.125)
    return DiagnosisContext(model, DATA, EPS, norm="linf", baseline=baseline, seed=0)


def silence_half(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * (torch.arange(28) % 2)


class BatchDependent(nn.Module):
    """Adds the outputs of the first image to those of the whole batch."""

    def forward(self, images):
        return net()(images) + net()(images[:1]).detach()


class GradientDependent(nn.Module):
    """Negates its outputs when gradients are enabled."""

    def forward(self, images):
        return -net()(images) if images.requires_grad else net()(images)


class ListOutputs(nn.Module):
    """Returns a list."""

    def forward(self, images):
        return net()(images).tolist()


def run_check(model: nn.Module, check: str, **options) -> pd.Series:
    return rc.diagnose(model, DATA, EPS, checks=[check], **options).checks.iloc[0]


def test_every_check_is_registered_and_explained():
    assert set(rc.list_diagnostics()) >= SECTION_6
    for name in rc.list_diagnostics():
        check = DIAGNOSTICS.entry(name).factory()
        assert check.meaning.endswith(".") and check.source and check.remedy.endswith(".")


@pytest.mark.parametrize(
    ("check", "model", "flagged", "proof"),
    [
        ("zero-gradient", lambda: transform_input(torch.detach), True, True),
        ("zero-gradient", lambda: transform_input(lambda x: x + (x - x).sqrt()), True, True),
        ("zero-gradient", lambda: transform_input(lambda x: torch.from_numpy(x.numpy().copy())), True, True),
        ("zero-gradient", lambda: transform_output(lambda z: 1e4 * z), True, False),
        ("zero-gradient", lambda: transform_output(lambda z: (30 * z).softmax(1)), True, True),
        ("gradient-scale", lambda: transform_output(lambda z: 1e-9 * z), False, False),
        ("gradient-scale", lambda: transform_output(lambda z: (30 * z).softmax(1)), True, False),
        ("finite-difference", lambda: transform_output(lambda z: 1e-9 * z), False, False),
        ("finite-difference", lambda: transform_input(with_backward(rounded(16), lambda g: g)), False, False),
        ("finite-difference", lambda: transform_gradient(torch.neg), True, False),
        ("finite-difference", lambda: transform_gradient(silence_half), True, False),
        ("finite-difference", lambda: transform_gradient(lambda g: 1e-4 * g), False, False),
        ("autograd-graph", net, False, False),
        ("autograd-graph", lambda: transform_input(lambda x: x * (torch.rand_like(x) < 0.5)), False, False),
        ("finite-difference", lambda: transform_input(lambda x: x + 1e-2 * torch.randn_like(x)), False, False),
        ("autograd-graph", lambda: transform_output(lambda z: 1e-9 * z), False, False),
        ("autograd-graph", lambda: transform_input(with_backward(rounded(16), lambda g: g)), False, False),
        ("autograd-graph", lambda: transform_input(rounded(16)), True, False),
        ("autograd-graph", lambda: transform_input(torch.detach), True, False),
        ("autograd-graph", lambda: transform_gradient(silence_half), True, False),
        ("loss-surface", lambda: transform_input(shattered), True, False),
        ("randomised", lambda: transform_input(lambda x: x + 1e-3 * torch.randn_like(x)), True, False),
        ("randomised", lambda: transform_input(lambda x: x + 0.5 * torch.randn_like(x)), True, False),
        ("randomised", lambda: transform_gradient(torch.randn_like), True, False),
        ("saturated-loss", lambda: transform_output(lambda z: 1e-6 * z), False, False),
        ("saturated-loss", lambda: transform_output(lambda z: 1e4 * z), True, True),
        ("unbounded", lambda: transform_gradient(torch.neg), True, True),
        ("validity", BatchDependent, True, False),
        ("validity", GradientDependent, True, False),
    ],
)
def test_each_check_detects_its_defect(check, model, flagged, proof):
    line = run_check(model(), check)
    assert (line["check"], line["flagged"], line["proof"]) == (check, flagged, proof), line["words"]


def test_the_settings_of_the_baseline_attack_are_checked():
    assert not run_check(net(), "reach", steps=10, step=0.1)["flagged"]
    short = run_check(net(), "reach", steps=5, step=0.1)
    assert short["flagged"] and short["value"] == pytest.approx(0.5)
    few = run_check(net(), "steps-converged", steps=2, step=0.2)
    assert not few["flagged"] and "converged at" in few["words"]  # more steps are tried until they gain nothing


def test_black_box_attacks_win_where_gradients_point_away():
    flipped = transform_gradient(torch.neg)
    verdict = rc.diagnose(flipped, DATA, 0.3, checks=["noise-beats-gradient", "black-box-beats-white-box"])
    assert verdict.masked and verdict.naive > 0.9 and verdict.corrected < 0.3


def test_a_trusted_and_a_masked_model_in_full():
    honest = rc.diagnose(net(), (DATA.images, DATA.labels), EPS)
    assert honest.status == "trusted" and not honest.masked and honest.corrected <= honest.naive
    assert set(honest.checks["check"]) == set(rc.list_diagnostics()) and not honest.checks["flagged"].any()
    masked = rc.diagnose(transform_input(rounded(8)), DATA, EPS)
    assert masked.masked and masked.clean == masked.naive == 1.0 and masked.corrected < 0.5
    assert masked.summary.startswith("Masked: robust accuracy 100 % under baseline PGD, ")
    assert "gap" in masked.summary and masked.attacks["fooled"].sum() > 0
    assert honest.summary.startswith("Trusted: ")
    assert honest.confidence > 0.9 and masked.confidence > 0.9 and "probability" in masked.summary


def test_a_single_check_is_no_verdict():
    partial = rc.diagnose(net(), DATA, EPS, checks=["finite-difference"])
    assert partial.summary.startswith("No verdict, which needs the check 'gap': ")
    assert "under these checks" in partial.summary and "trusted" not in partial.summary.lower()


def test_odd_gradients_that_mislead_no_attack_are_trusted():
    """Binary images withstand every change below one half, with or without a gradient."""
    images = (DATA.images > 0.4).float()
    model = transform_input(lambda x: (x > 0.5).float())
    verdict = rc.diagnose(model, (images, DATA.labels), 0.05)
    assert verdict.status == "trusted" and verdict.naive == verdict.corrected == verdict.clean
    assert "zero-gradient" in set(verdict.checks.loc[verdict.checks["flagged"], "check"])
    assert "mislead no attack" in verdict.summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_gradient_that_is_silent_on_half_of_the_pixels_is_found(seed):
    verdict = rc.diagnose(transform_gradient(silence_half), DATA, 0.06, checks=["gap", "finite-difference"], seed=seed)
    plain = rc.diagnose(net(), DATA, 0.06, checks=["gap"], seed=seed)
    assert plain.status == "trusted" and verdict.corrected <= plain.corrected + 0.05
    assert verdict.status == "masked" or verdict.naive - verdict.corrected < 0.05


def test_a_diagnosis_is_reproducible():
    model, checks = transform_input(lambda x: x + 0.1 * torch.randn_like(x)), ["randomised", "noise-beats-gradient"]
    first, second = (rc.diagnose(model, DATA, EPS, checks=checks) for _ in range(2))
    assert first.checks.equals(second.checks) and first.attacks.equals(second.attacks)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 5), nn.Dropout(0.5)).train()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    rc.diagnose(model, DATA, EPS, checks=["zero-gradient", "randomised"])
    assert model.training and model[2].training and all(p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class InPlace(nn.Module):
    """Overwrites its input."""

    def forward(self, images):
        return net()(images.sub_(0.5).add_(0.5))


class InferenceMode(nn.Module):
    """Runs in inference mode, which has no gradients."""

    def forward(self, images):
        with torch.inference_mode():
            return net()(images)


def test_a_model_may_overwrite_its_input():
    verdict = rc.diagnose(InPlace(), DATA, EPS, checks=["zero-gradient", "finite-difference", "validity"])
    assert verdict.status == "trusted", verdict.summary


def test_a_model_in_inference_mode_has_no_gradient():
    line = run_check(InferenceMode(), "zero-gradient")
    assert line["flagged"] and line["proof"]


class FailsWithGradients(nn.Module):
    """Raises in the forward or the backward pass when gradients are enabled."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.model, self.where = net(), where

    def forward(self, images):
        if images.requires_grad and self.where == "forward":
            raise ValueError("no gradients for you")
        outputs = self.model(images)
        if outputs.requires_grad and self.where == "backward":
            outputs.register_hook(self.refuse)
        return outputs

    @staticmethod
    def refuse(gradient):
        raise ValueError("no gradients for you")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_model_that_refuses_gradients_has_none(where):
    line = run_check(FailsWithGradients(where), "zero-gradient")
    assert line["flagged"] and line["proof"]


def test_every_attack_stays_in_the_unit_box():
    """The model fails outside of [0,1]: a look-up table of grey levels has no entry there."""
    table = torch.linspace(0, 1, 16)
    rough = OutputTransform(net(), lambda z: z + 0.3 * torch.sin(300 * z))
    model = InputTransform(lambda x: 0.5 * table[(15 * x).round().long()] + 0.5 * x, rough)
    verdict = rc.diagnose(model, DATA, EPS, checks=["adaptive", "loss-surface"])
    assert "smoothed gradients" in set(verdict.attacks["attack"]) and not np.isnan(verdict.corrected)


def test_inner_logits_are_attacked_where_the_outputs_saturate():
    verdict = rc.diagnose(BlendedOutputs(net(), train(mlp, seed=5)), DATA, EPS, checks=["adaptive"])
    attacks = verdict.attacks.set_index("attack")
    assert attacks.loc["inner logits", "fooled"] > 0.5 * attacks.loc["inner logits", "tried"] > 0, verdict.attacks
    assert verdict.status == "masked"


def test_inner_logits_with_the_same_value_but_another_gradient_are_attacked():
    model = SubstituteGradient(net(), train(mlp, noise=0.5, seed=3))
    context = make_context(model)
    assert set(find_inner_logits(context)) & set(model.model.modules())


def test_inner_logits_of_every_ensemble_member_are_found_once():
    members = [OutputTransform(train(mlp, seed=seed), lambda z: z.softmax(1)) for seed in (5, 6)]
    context = make_context(AveragingEnsemble(*members))
    assert len(find_inner_logits(context)) == 4  # per member the logits and their softmax


@pytest.mark.parametrize("transform", [lambda z: z, lambda z: 3 * z + 7, lambda z: z.log_softmax(1)])
def test_inner_logits_equivalent_to_the_outputs_are_not_attacked(transform):
    context = make_context(transform_output(transform))
    assert find_inner_logits(context) == []


def accept_known_images(images):
    if not all((DATA.images == image).flatten(1).all(1).any() for image in images):
        raise ValueError("never seen")
    return images


def constant(value: float) -> nn.Module:
    return OutputTransform(net(), lambda z: torch.full_like(z, value))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (constant(torch.nan), "not finite on any image"),
        (constant(0.5), "predicts class 0 for every image"),
        (OutputTransform(net(), lambda z: z[:, :3]), "has 3 classes, but the labels go up to 4"),
        (OutputTransform(net(), lambda z: z[0]), r"outputs of shape \(30, classes\), not shape"),
        (ListOutputs(), "not list"),
        (nn.Sequential(nn.Flatten(), nn.Linear(100, 5)), "does it expect another input size"),
        (OutputTransform(net(), torch.neg), "classifies no image correctly"),
        (InputTransform(lambda _: sys.exit(3), net()), "SystemExit: 3"),
        (
            InputTransform(accept_known_images, net()),
            "fails on perturbed images: ValueError: never seen; it must accept",
        ),
        (
            InputTransform(lambda x: x.view(30, 1, 28, 28), net()),
            "fails on a single image .* must accept batches of any size",
        ),
    ],
)
def test_a_model_that_cannot_be_diagnosed_is_reported(model, message):
    verdict = rc.diagnose(model, DATA, EPS)
    assert verdict.status == "suspicious" and not verdict.masked
    assert verdict.checks["flagged"].all()
    assert re.search(message, verdict.summary), verdict.summary


def test_outputs_that_are_sometimes_not_finite_are_flagged():
    def broken(z):
        return torch.where((torch.arange(len(z)) == 3)[:, None], torch.nan, z)

    assert "not finite on 1 images" in run_check(OutputTransform(net(), broken), "validity")["words"]


@pytest.fixture
def plugins():
    names = set(rc.list_diagnostics())
    yield
    for name in set(rc.list_diagnostics()) - names:
        del DIAGNOSTICS._entries[name]


def test_the_smallest_plugin(plugins):
    @rc.diagnostic("my-check")
    def my_check(model, data, eps, *, limit: float = 0.5):
        """Eps is large."""
        return rc.Finding(flagged=eps > limit, value=eps, threshold=limit, words=f"{len(data)} images")

    loose = rc.diagnose(net(), DATA, 0.1, checks=["my-check"])
    strict = rc.diagnose(net(), DATA, 0.1, checks=[{"use": "my-check", "limit": 0.05}])
    assert (loose.status, strict.status) == ("trusted", "suspicious")
    assert strict.checks.iloc[0]["meaning"] == "Eps is large." and "30 images" in strict.summary
    for wrong, message in {"limt": "unknown option 'limt'. Did you mean 'limit'?", "limit": "valid number"}.items():
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            rc.diagnose(net(), DATA, 0.1, checks=[{"use": "my-check", wrong: "x"}])


def test_a_check_of_one_parameter_gets_the_context(plugins):
    @rc.diagnostic("few-samples")
    def few_samples(context, *, least: int = 100):
        """Few samples are classified correctly."""
        return rc.Finding(context.n < least, context.n, least, f"{context.n} samples")

    line = run_check(net(), "few-samples")
    assert line["flagged"] and line["value"] == 30 and line["meaning"] == "Few samples are classified correctly."


def test_a_cause_and_an_effect_together_prove_masking(plugins):
    def flagged(model, data, eps):
        return rc.Finding(flagged=True, value=1.0, threshold=0.0, words="seen")

    for kind in ("cause", "effect"):
        rc.diagnostic(f"a-{kind}", kind=kind)(flagged)
    assert rc.diagnose(net(), DATA, checks=["a-cause"]).status == "suspicious"
    assert rc.diagnose(net(), DATA, checks=["a-effect"]).status == "suspicious"
    assert rc.diagnose(net(), DATA, checks=["a-cause", "a-effect"]).status == "masked"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 0.0}, "eps: must be a positive number"),
        ({"loss": "cee"}, "loss: unknown loss 'cee'"),
        ({"steps": 0}, "steps: must be at least 1, not 0"),
        ({"step": 1.5}, "step: must be a fraction of eps in (0, 1], not 1.5"),
        ({"checks": ["radomised"]}, "unknown diagnostic 'radomised'. Did you mean 'randomised'?"),
        ({"checks": [{"limit": 3}]}, "must name a check with 'use'"),
        ({"loss": "training"}, "has no training loss"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(UserError) as error:
        rc.diagnose(net(), DATA, **{"checks": ["zero-gradient"], **options})
    assert message in str(error.value)


def test_wrong_signatures_and_inputs_are_rejected():
    with pytest.raises(UserError, match=r"must take \(model, data, eps\) or \(context\)"):
        rc.diagnostic("odd")(lambda model, data: None)
    with pytest.raises(UserError, match="must be an nn"):
        rc.diagnose("cnn", DATA)
    with pytest.raises(UserError, match=r"a pair of tensors \(images, labels\)"):
        rc.diagnose(net(), DATA.images)
