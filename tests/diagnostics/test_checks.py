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
from benchmarks.calibration.collection import (
    EPS,
    Blend,
    First,
    Mean,
    Stolen,
    Then,
    blobs,
    mlp,
    rounded,
    shattered,
    train,
    with_backward,
)
from robustcaps.diagnostics.checks.context import Case, Textbook
from robustcaps.diagnostics.checks.inner_logits import inner_parts
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


def behind(change) -> nn.Module:
    return First(change, net())


def outputs(change) -> nn.Module:
    return Then(net(), change)


def backward(change) -> nn.Module:
    return behind(with_backward(lambda x: x.clone(), change))


class Forgetful(nn.Module):
    """Looks at the first image of a batch only."""

    def forward(self, images):
        return net()(images) + net()(images[:1]).detach()


class TwoFaced(nn.Module):
    """Answers otherwise when a gradient is wanted."""

    def forward(self, images):
        return -net()(images) if images.requires_grad else net()(images)


class Listing(nn.Module):
    """Answers with a list."""

    def forward(self, images):
        return net()(images).tolist()


def only(model: nn.Module, check: str, **options) -> pd.Series:
    return rc.diagnose(model, DATA, EPS, checks=[check], **options).checks.iloc[0]


def test_every_check_is_there_and_explains_itself():
    assert set(rc.list_diagnostics()) >= SECTION_6
    for name in rc.list_diagnostics():
        check = DIAGNOSTICS.entry(name).factory()
        assert check.meaning.endswith(".") and check.source and check.remedy.endswith(".")


@pytest.mark.parametrize(
    ("check", "model", "flagged", "proof"),
    [
        ("zero-gradient", lambda: behind(torch.detach), True, True),
        ("zero-gradient", lambda: behind(lambda x: x + (x - x).sqrt()), True, True),
        ("zero-gradient", lambda: behind(lambda x: torch.from_numpy(x.numpy().copy())), True, True),
        ("zero-gradient", lambda: outputs(lambda z: 1e4 * z), True, False),
        ("zero-gradient", lambda: outputs(lambda z: (30 * z).softmax(1)), True, True),
        ("gradient-scale", lambda: outputs(lambda z: 1e-9 * z), False, False),
        ("gradient-scale", lambda: outputs(lambda z: (30 * z).softmax(1)), True, False),
        ("finite-difference", lambda: outputs(lambda z: 1e-9 * z), False, False),
        ("finite-difference", lambda: behind(with_backward(rounded(16), lambda g: g)), False, False),
        ("finite-difference", lambda: backward(torch.neg), True, False),
        ("loss-surface", lambda: behind(shattered), True, False),
        ("randomised", lambda: behind(lambda x: x + 1e-3 * torch.randn_like(x)), True, False),
        ("randomised", lambda: behind(lambda x: x + 0.5 * torch.randn_like(x)), True, True),
        ("randomised", lambda: backward(torch.randn_like), True, True),
        ("saturated-loss", lambda: outputs(lambda z: 1e-6 * z), False, False),
        ("saturated-loss", lambda: outputs(lambda z: 1e4 * z), True, True),
        ("unbounded", lambda: backward(torch.neg), True, True),
        ("validity", Forgetful, True, False),
        ("validity", TwoFaced, True, False),
    ],
)
def test_a_check_sees_what_it_is_for(check, model, flagged, proof):
    line = only(model(), check)
    assert (line["check"], line["flagged"], line["proof"]) == (check, flagged, proof), line["words"]


def test_the_settings_of_the_attack_in_question_are_examined():
    assert not only(net(), "reach", steps=10, step=0.1)["flagged"]
    short = only(net(), "reach", steps=5, step=0.1)
    assert short["flagged"] and short["value"] == pytest.approx(0.5)
    assert only(net(), "steps-converged", steps=2, step=0.2)["flagged"]


def test_noise_and_single_steps_win_where_gradients_point_away():
    flipped = backward(torch.neg)
    verdict = rc.diagnose(flipped, DATA, 0.3, checks=["noise-beats-gradient", "black-box-beats-white-box"])
    assert verdict.masked and verdict.naive > 0.9 and verdict.corrected < 0.3


def test_a_trusted_and_a_masked_model_in_full():
    honest = rc.diagnose(net(), (DATA.images, DATA.labels), EPS)
    assert honest.status == "trusted" and not honest.masked and honest.corrected <= honest.naive
    assert set(honest.checks["check"]) == set(rc.list_diagnostics()) and not honest.checks["flagged"].any()
    masked = rc.diagnose(behind(rounded(8)), DATA, EPS)
    assert masked.masked and masked.clean == masked.naive == 1.0 and masked.corrected < 0.5
    assert masked.summary.startswith("Masked: robust accuracy naive 100%, after remedy")
    assert "zero-gradient" in masked.summary and masked.attacks["fooled"].sum() > 0


def test_a_diagnosis_can_be_repeated():
    model, checks = behind(lambda x: x + 0.1 * torch.randn_like(x)), ["randomised", "noise-beats-gradient"]
    first, second = (rc.diagnose(model, DATA, EPS, checks=checks) for _ in range(2))
    assert first.checks.equals(second.checks) and first.attacks.equals(second.attacks)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 5), nn.Dropout(0.5)).train()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    rc.diagnose(model, DATA, EPS, checks=["zero-gradient", "randomised"])
    assert model.training and model[2].training and all(p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


class Inplace(nn.Module):
    """Overwrites the images that it is given."""

    def forward(self, images):
        return net()(images.sub_(0.5).add_(0.5))


class Inferring(nn.Module):
    """Answers in inference mode, which knows no gradients."""

    def forward(self, images):
        with torch.inference_mode():
            return net()(images)


def test_a_model_may_overwrite_its_images():
    verdict = rc.diagnose(Inplace(), DATA, EPS, checks=["zero-gradient", "finite-difference", "validity"])
    assert verdict.status == "trusted", verdict.summary


def test_a_model_in_inference_mode_has_no_gradient():
    line = only(Inferring(), "zero-gradient")
    assert line["flagged"] and line["proof"]


class Refusing(nn.Module):
    """Raises when a gradient is wanted: on the way there, or on the way back."""

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
    line = only(Refusing(where), "zero-gradient")
    assert line["flagged"] and line["proof"]


def test_every_remedy_asks_about_images_in_the_box():
    """Noise around an image once left [0,1], where a table of grey levels has no entry."""
    table = torch.linspace(0, 1, 16)
    rough = Then(net(), lambda z: z + 0.3 * torch.sin(300 * z))
    model = First(lambda x: 0.5 * table[(15 * x).round().long()] + 0.5 * x, rough)
    verdict = rc.diagnose(model, DATA, EPS, checks=["adaptive", "loss-surface"])
    assert "smoothed gradients" in set(verdict.attacks["attack"]) and not np.isnan(verdict.corrected)


def test_answers_inside_a_network_are_attacked_where_those_of_the_whole_are_flat():
    verdict = rc.diagnose(Blend(net(), train(mlp, seed=5)), DATA, EPS, checks=["adaptive"])
    tried = verdict.attacks.set_index("attack")
    assert tried.loc["inner answers", "fooled"] > 0.5 * tried.loc["inner answers", "tried"] > 0, verdict.attacks
    assert verdict.status == "masked"


def test_a_part_with_the_answer_of_the_whole_but_another_gradient_is_attacked():
    stolen = Stolen(net(), train(mlp, noise=0.5, seed=3))
    case = Case(stolen, DATA, EPS, norm="linf", textbook=Textbook("ce", 20, 0.125), seed=0)
    assert set(inner_parts(case)) & set(stolen.model.modules())


def test_every_member_of_an_ensemble_is_heard_once():
    members = [Then(train(mlp, seed=seed), lambda z: z.softmax(1)) for seed in (5, 6)]
    case = Case(Mean(*members), DATA, EPS, norm="linf", textbook=Textbook("ce", 20, 0.125), seed=0)
    assert len(inner_parts(case)) == 4  # of each the logits, and their softmax


@pytest.mark.parametrize("change", [lambda z: z, lambda z: 3 * z + 7, lambda z: z.log_softmax(1)])
def test_parts_that_answer_like_the_whole_are_not_attacked(change):
    case = Case(Then(net(), change), DATA, EPS, norm="linf", textbook=Textbook("ce", 20, 0.125), seed=0)
    assert inner_parts(case) == []


def only_known(images):
    if not all((DATA.images == image).flatten(1).all(1).any() for image in images):
        raise ValueError("never seen")
    return images


def constant(value: float) -> nn.Module:
    return Then(net(), lambda z: torch.full_like(z, value))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (constant(torch.nan), "not finite on any image"),
        (constant(0.5), "answers class 0 whatever the image"),
        (Then(net(), lambda z: z[:, :3]), "tells 3 classes apart, but the labels go up to 4"),
        (Then(net(), lambda z: z[0]), r"outputs \(30, classes\), not shape"),
        (Listing(), "not list"),
        (nn.Sequential(nn.Flatten(), nn.Linear(100, 5)), "has it another input size"),
        (Then(net(), torch.neg), "no image right"),
        (First(lambda _: sys.exit(3), net()), "SystemExit: 3"),
        (
            First(only_known, net()),
            "fails on images that an attack tries: ValueError: never seen; it must answer",
        ),
        (First(lambda x: x.view(30, 1, 28, 28), net()), "fails on one image .* must take any number of them"),
    ],
)
def test_a_model_that_cannot_be_judged_is_told_so(model, words):
    verdict = rc.diagnose(model, DATA, EPS)
    assert verdict.status == "suspicious" and not verdict.masked
    assert verdict.checks["flagged"].all()
    assert re.search(words, verdict.summary), verdict.summary


def test_outputs_that_are_sometimes_not_finite_are_flagged():
    def broken(z):
        return torch.where((torch.arange(len(z)) == 3)[:, None], torch.nan, z)

    assert "not finite on 1 images" in only(Then(net(), broken), "validity")["words"]


@pytest.fixture
def plugins():
    names = set(rc.list_diagnostics())
    yield
    for name in set(rc.list_diagnostics()) - names:
        del DIAGNOSTICS._entries[name]


def test_the_smallest_plugin(plugins):
    @rc.diagnostic("my-check")
    def my_check(model, data, eps, *, limit: float = 0.5):
        """Means little."""
        return rc.Finding(flagged=eps > limit, value=eps, threshold=limit, words=f"{len(data)} images")

    loose = rc.diagnose(net(), DATA, 0.1, checks=["my-check"])
    strict = rc.diagnose(net(), DATA, 0.1, checks=[{"use": "my-check", "limit": 0.05}])
    assert (loose.status, strict.status) == ("trusted", "suspicious")
    assert strict.checks.iloc[0]["meaning"] == "Means little." and "30 images" in strict.summary
    for wrong, words in {"limt": "unknown option 'limt'. Did you mean 'limit'?", "limit": "valid number"}.items():
        with pytest.raises(UserError, match=words.replace("?", r"\?")):
            rc.diagnose(net(), DATA, 0.1, checks=[{"use": "my-check", wrong: "x"}])


def test_a_cause_and_an_effect_prove_what_neither_does_alone(plugins):
    def flagged(model, data, eps):
        return rc.Finding(flagged=True, value=1.0, threshold=0.0, words="seen")

    for kind in ("cause", "effect"):
        rc.diagnostic(f"a-{kind}", kind=kind)(flagged)
    assert rc.diagnose(net(), DATA, checks=["a-cause"]).status == "suspicious"
    assert rc.diagnose(net(), DATA, checks=["a-effect"]).status == "suspicious"
    assert rc.diagnose(net(), DATA, checks=["a-cause", "a-effect"]).status == "masked"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": 0.0}, "eps: must be a number above 0"),
        ({"loss": "cee"}, "loss: unknown loss 'cee'"),
        ({"steps": 0}, "steps: at least one step"),
        ({"checks": ["radomised"]}, "unknown diagnostic 'radomised'. Did you mean 'randomised'?"),
        ({"checks": [{"limit": 3}]}, "a check needs a name"),
        ({"loss": "training"}, "has no training loss"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(options, words):
    with pytest.raises(UserError) as error:
        rc.diagnose(net(), DATA, **{"checks": ["zero-gradient"], **options})
    assert words in str(error.value)


def test_other_functions_are_refused():
    with pytest.raises(UserError, match=r"must take \(model, data, eps\), or \(case\)"):
        rc.diagnostic("odd")(lambda model, data: None)
    with pytest.raises(UserError, match="must be an nn"):
        rc.diagnose("cnn", DATA)
    with pytest.raises(UserError, match=r"a pair of tensors \(images, labels\)"):
        rc.diagnose(net(), DATA.images)
