"""Checks of the evaluation itself: a usable model, sufficient steps, and valid adversarial examples."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.attacks.guard import find_violations
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.baseline_attack import run_baseline
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.shielded_model import ModelFailed
from robustcaps.errors import UserError

OUTPUT_TOLERANCE = 1e-3
"""Difference between outputs that is attributed to rounding, relative to the output spread."""
PROBE_IMAGES = 8
"""Number of images whose outputs are computed again, one by one and with gradients."""


@diagnostic(
    "reach",
    source="Carlini et al. 2019",
    remedy="Raise the step size or the number of steps: steps x step size must be at least eps.",
)
def reach(context: DiagnosisContext) -> Finding:
    """The baseline attack cannot reach the boundary of the ball: steps x step size is less than eps.

    Measures steps x step size / eps (Carlini et al. 2019). Flagged below 1; never a proof.
    """
    steps, step = context.baseline.steps, context.baseline.step
    distance = steps * step
    words = f"{steps} steps of {step:.3g} eps cover at most {distance:.3g} eps"
    return Finding(distance < 1.0 - 1e-9, distance, 1.0, words)


@diagnostic(
    "validity",
    source="Carlini et al. 2019",
    remedy="Fix the model or the attack: the robust accuracy is not measured as stated.",
)
def validity(context: DiagnosisContext) -> Finding:
    """The evaluation is invalid: images outside the threat model, or outputs not finite or not reproducible.

    Counts the problems among: adversarial images outside [0,1] or the ball, outputs that are not finite, that depend on
    the rest of the batch, or on whether gradients are enabled (Carlini et al. 2019). Flagged if there are any.
    """
    run = context.cached(run_baseline)
    invalid = sum(map(bool, find_violations(run.images, context.images, context.budget)))
    not_finite = int((~torch.isfinite(context.outputs)).any(1).sum())
    deterministic = not context.is_randomised
    problems = {
        f"{invalid} adversarial images lie outside [0,1] or the ball": invalid > 0,
        f"outputs are not finite on {not_finite} images": not_finite > 0,
        "outputs depend on the rest of the batch": deterministic and _differs(context, _outputs_one_by_one(context)),
        "outputs change when gradients are enabled": deterministic
        and _differs(context, _outputs_with_gradient(context)),
    }
    found = [problem for problem, is_present in problems.items() if is_present]
    return Finding(bool(found), float(len(found)), 0.0, "; ".join(found) or "no problems found")


def find_model_problem(context: DiagnosisContext) -> str:
    """Return why a model cannot be diagnosed at all, '' if it can."""
    try:
        outputs = context.outputs
        context.shielded(context.all_images[:1])
    except UserError as error:
        return str(error).rstrip(".")
    except ModelFailed as error:
        return _describe_failure(context, error)
    largest_label = int(context.all_labels.max())
    if outputs.shape[1] <= largest_label:
        return f"the model has {outputs.shape[1]} classes, but the labels go up to {largest_label}"
    if not bool(torch.isfinite(outputs).all(1).any()):
        return "the model's outputs are not finite on any image"
    predictions = outputs.nan_to_num(0.0).argmax(1)
    if bool((context.all_labels != context.all_labels[0]).any()) and bool((predictions == predictions[0]).all()):
        return f"the model predicts class {int(predictions[0])} for every image"
    return "" if context.n else "the model classifies no image correctly, so there is nothing to attack"


def _describe_failure(context: DiagnosisContext, error: ModelFailed) -> str:
    """Return why a model failed on clean images, with a hint where the error is about their shape or number."""
    shape = tuple(context.all_images.shape[1:])
    batch_works = "outputs" in vars(context)
    if batch_works:
        return f"the model fails on a single image of shape {shape}: {error}; it must accept batches of any size"
    hint = "; does it expect another input size?" if any(w in str(error) for w in ("shape", "size", "channels")) else ""
    return f"the model fails on images of shape {shape}: {error}{hint}"


def _outputs_one_by_one(context: DiagnosisContext) -> Tensor:
    with torch.no_grad():
        return torch.cat([context.shielded(image[None]) for image in context.all_images[:PROBE_IMAGES]])


def _outputs_with_gradient(context: DiagnosisContext) -> Tensor:
    outputs: Tensor = context.shielded(context.all_images[:PROBE_IMAGES].detach().requires_grad_())
    return outputs.detach()


def _differs(context: DiagnosisContext, outputs: Tensor) -> bool:
    """Return whether outputs for the first images differ from those computed in full batches."""
    gap = (outputs - context.outputs[: len(outputs)]).nan_to_num(0.0, 0.0, 0.0).abs().max()
    return float(gap) > OUTPUT_TOLERANCE * context.output_spread
