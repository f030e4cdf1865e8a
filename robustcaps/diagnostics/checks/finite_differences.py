"""Finite differences against autograd: for which samples, and along which directions, the two disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.gradient_measures import evenly_spaced

MAX_SAMPLES = 48
"""Number of samples that are compared."""
DIRECTIONS = 16
"""Directions per sample: half over the whole image, half over a random quarter of it."""
DIRECTION_STREAM = 1_000_002
STEPS = (2e-3, 2e-2)
"""Step sizes, besides one that spans the ball."""
HALVINGS = (1.0, 2.0, 4.0)
"""Each step size is also halved twice: a staircase agrees with itself by chance at two step sizes, but not at three."""
MAX_CURVATURE = 0.25
"""A finite difference counts if halving its step changes it by less than this share: else the surface is not straight
at that scale, and no derivative describes it."""
CURVATURE_MARGIN = 3.0
"""Richardson: on a smooth surface, the central difference with the smallest step is off by less than a third of that
change; three times the change, which is ten times as much, is not held against the gradient."""
ROUNDING = 1e-6
"""Relative rounding error of an output in float32 after a deep network; the noise of a randomised model is larger."""
MAX_UNEXPLAINED = 0.1
"""Share of the squared differences that autograd may leave unexplained before a sample disagrees: the share left by a
cosine of 0.95. Honest gradients reach 0.97 and more with curvature not even excused, as it is here."""
MIN_CONCLUSIVE = 4
"""Conclusive directions that a sample needs to be judged."""


@dataclass(frozen=True, eq=False)
class DifferenceComparison:
    """Derivatives along directions by autograd beside finite differences, for some samples."""

    disagrees: Tensor
    """(m,): whether a sample disagrees, of those judged."""
    judged: Tensor
    """(m,): whether enough of its directions are conclusive."""
    direction_share: float
    """Share of conclusive directions on which the two disagree."""


@dataclass(frozen=True, eq=False)
class _Scale:
    """The compared images, moved inside the box by the step size, and autograd's gradients there."""

    step: float
    images: Tensor
    gradient: Tensor


def compare_finite_differences(context: DiagnosisContext) -> DifferenceComparison:
    """Compare at some images, at the step size that agrees best: a sound substitute for rounding passes.

    A positive factor on the whole gradient of a sample is not held against it, because attacks normalise gradients.
    """
    rows = evenly_spaced(context.rows, MAX_SAMPLES)
    largest = float(context.budget.radius(context.images[:1])) if context.budget.norm == "linf" else 0.1
    scales = [_scale(context, rows, step) for step in (*STEPS, max(largest, STEPS[-1]))]
    parts = [_compare(context, rows, scales, number) for number in range(DIRECTIONS)]
    own, size, excused, conclusive = (torch.stack(each, 1) for each in zip(*parts, strict=True))
    factor = (own * size * conclusive).sum(1) / (own.square() * conclusive).sum(1).clamp_min(1e-300)
    unexplained = ((factor.clamp_min(0.0)[:, None] * own - size).abs() - excused).clamp_min(0.0)
    share = (unexplained.square() * conclusive).sum(1) / (size.square() * conclusive).sum(1).clamp_min(1e-300)
    judged = conclusive.sum(1) >= MIN_CONCLUSIVE
    wrong = unexplained > MAX_UNEXPLAINED**0.5 * size.abs()
    direction_share = float((wrong & conclusive).sum() / conclusive.sum().clamp_min(1))
    return DifferenceComparison((share > MAX_UNEXPLAINED) & judged, judged, direction_share)


def _scale(context: DiagnosisContext, rows: Tensor, step: float) -> _Scale:
    images = context.images[rows].clamp(step, 1.0 - step) if step < 0.5 else context.images[rows]
    return _Scale(step, images, context.margin_gradient(images, rows).double().nan_to_num(0.0, 0.0, 0.0))


def _compare(
    context: DiagnosisContext, rows: Tensor, scales: Sequence[_Scale], number: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return for a direction both derivatives, the difference that is excused, and whether it is conclusive."""
    direction = _direction(context, rows, number)
    unexplained = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.device)
    derivative, size, excused = (torch.zeros_like(unexplained) for _ in range(3))
    conclusive = torch.zeros_like(rows, dtype=torch.bool)
    for scale in scales:
        own = (scale.gradient * direction).flatten(1).sum(1)
        steps = (scale.step / share for share in HALVINGS)
        quotients = torch.stack([_difference(context, scale.images, rows, direction, step) for step in steps])
        narrow, change = quotients[-1], quotients.amax(0) - quotients.amin(0)
        rounding = max(ROUNDING, context.output_noise) * context.output_spread / scale.step
        counts = (change <= MAX_CURVATURE * quotients.abs().amax(0)) & (narrow.abs() > rounding)
        allowed = CURVATURE_MARGIN * change + rounding
        left = ((own - narrow).abs() - allowed).clamp_min(0.0) / narrow.abs().clamp_min(1e-300)
        better = counts & (~conclusive | (left < unexplained))
        unexplained, derivative = torch.where(better, left, unexplained), torch.where(better, own, derivative)
        size, excused = torch.where(better, narrow, size), torch.where(better, allowed, excused)
        conclusive = conclusive | counts
    return derivative, size, excused, conclusive


def _difference(context: DiagnosisContext, images: Tensor, rows: Tensor, direction: Tensor, step: float) -> Tensor:
    """Return the central difference quotient of the margin."""
    forward, backward = (context.margins(images + sign * step * direction, rows) for sign in (1.0, -1.0))
    return (forward - backward) / (2.0 * step)


def _direction(context: DiagnosisContext, rows: Tensor, number: int) -> Tensor:
    """Return random signs per sample, by pixel or by blocks of 4x4, on the whole image or on a random quarter of it."""
    channels, height, width = context.images.shape[1:]
    block = 1 if number % 2 else 4
    coarse = (channels, -(-height // block), -(-width // block))
    draws, stream = context.draws(rows), DIRECTION_STREAM + 2 * number
    signs = draws.uniform(coarse, stream=stream).ge(0.5).float() * 2.0 - 1.0
    signs = signs.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :height, :width]
    if number < DIRECTIONS // 2:
        return signs
    corner = (draws.uniform((2,), stream=stream + 1) * torch.tensor([height, width], device=rows.device) / 2).long()
    inside = []
    for axis, length in enumerate((height, width)):
        place = torch.arange(length, device=rows.device)[None] - corner[:, axis : axis + 1]
        inside.append((place >= 0) & (place < length // 2))
    return signs * (inside[0][:, None, :, None] & inside[1][:, None, None, :])
