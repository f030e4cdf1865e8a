"""Checks of the evaluation itself: a model that can be asked, an attack that can reach, images that count."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.attacks.guard import proposal_violations
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.baseline_attack import textbook_attack
from robustcaps.diagnostics.checks.context import Case
from robustcaps.diagnostics.checks.shielded_model import ModelFailed
from robustcaps.errors import UserError

TOLERANCE = 1e-3
"""How far, as a share of their spread, outputs may differ by rounding."""


@diagnostic(
    "reach",
    source="Carlini et al. 2019",
    remedy="Raise the step size or the number of steps: steps x step size must be at least eps.",
)
def reach(case: Case) -> Finding:
    """Whether the textbook attack's steps can cross the ball at all: steps x step size against eps."""
    crossed = case.textbook.steps * case.textbook.step
    words = f"{case.textbook.steps} steps of {case.textbook.step:.3g} eps reach {crossed:.3g} eps"
    return Finding(crossed < 1.0 - 1e-9, crossed, 1.0, words)


@diagnostic(
    "validity",
    source="Carlini et al. 2019",
    remedy="Mend the model or the attack: what is measured is not what is claimed.",
)
def validity(case: Case) -> Finding:
    """Finite outputs, adversarial images in the box and the ball, answers that do not depend on how one asks."""
    trace = case.once(textbook_attack)
    broken = sum(map(bool, proposal_violations(trace.images, case.images, case.budget)))
    silent = int((~torch.isfinite(case.outputs)).any(1).sum())
    problems = {
        f"{broken} adversarial images leave the box or the ball": broken > 0,
        f"outputs are not finite on {silent} images": silent > 0,
        "answers depend on the other images of the batch": not case.randomised and _differs(case, _one_by_one(case)),
        "answers change when a gradient is wanted": not case.randomised and _differs(case, _with_gradient(case)),
    }
    found = [words for words, is_there in problems.items() if is_there]
    return Finding(bool(found), float(len(found)), 0.0, "; ".join(found) or "nothing is wrong")


def unfit(case: Case) -> str:
    """Return why a model cannot be judged at all, '' if it can."""
    shape = tuple(case.all_images.shape[1:])
    try:
        outputs = case.outputs
        case.subject(case.all_images[:1])
    except UserError as error:
        return str(error).rstrip(".")
    except ModelFailed as error:
        asked = "one image" if "outputs" in vars(case) else "images"
        way_out = "it must take any number of them" if "outputs" in vars(case) else "has it another input size?"
        shaped = "outputs" in vars(case) or any(word in str(error) for word in ("shape", "size", "channels"))
        return f"the model fails on {asked} of shape {shape}: {error}" + (f"; {way_out}" if shaped else "")
    if outputs.shape[1] <= int(case.all_labels.max()):
        return f"the model tells {outputs.shape[1]} classes apart, but the labels go up to {int(case.all_labels.max())}"
    if not bool(torch.isfinite(outputs).all(1).any()):
        return "the model's outputs are not finite on any image"
    answers = outputs.nan_to_num(0.0).argmax(1)
    if bool((case.all_labels != case.all_labels[0]).any()) and bool((answers == answers[0]).all()):
        return f"the model answers class {int(answers[0])} whatever the image"
    return "" if case.n else "the model answers no image right, so there is nothing to attack"


def _one_by_one(case: Case) -> Tensor:
    with torch.no_grad():
        return torch.cat([case.subject(image[None]) for image in case.all_images[:8]])


def _with_gradient(case: Case) -> Tensor:
    outputs: Tensor = case.subject(case.all_images[:8].detach().requires_grad_())
    return outputs.detach()


def _differs(case: Case, outputs: Tensor) -> bool:
    """Return whether outputs for the first images are others than those from the whole batch."""
    gap = (outputs - case.outputs[: len(outputs)]).nan_to_num(0.0, 0.0, 0.0).abs().max()
    return float(gap) > TOLERANCE * case.spread
