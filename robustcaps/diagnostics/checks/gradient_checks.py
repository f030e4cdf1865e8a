"""Checks of the gradients themselves: are they there, do they tell the truth, and do they still a step further on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robustcaps.diagnostics.checks.attack_checks import MISSED, surely
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.baseline_attack import textbook_start
from robustcaps.diagnostics.checks.context import Case
from robustcaps.diagnostics.checks.gradient_measures import (
    HALF,
    agreement,
    chance,
    margin_gradient,
    repeatability,
    secant,
    smoothness,
    useless,
)

LUCK = 0.1
"""A model whose margins are chance for a tenth or more is a randomised defence, not one that rounds differently."""

Cosine = Annotated[float, Field(ge=-1, le=1, description="smallest cosine that is no sign of masking")]


@diagnostic(
    "zero-gradient",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018; Hinton, Sabour, Frosst 2018",
    remedy="Attack logits before they saturate; substitute the backward pass; attack without gradients.",
)
def zero_gradient(case: Case) -> Finding:
    """Samples whose gradient is zero everywhere, or not finite: no gradient attack can move them."""
    gradient = case.once(textbook_start).gradient
    lost, hopeless = useless(gradient), useless(case.once(margin_gradient))
    pixels = float((gradient == 0).float().mean())
    words = f"{int(lost.sum())} of {case.n} samples have no gradient; {pixels:.0%} of all pixels' are exactly zero"
    if case.subject.complaint:
        words += f" ({case.subject.complaint})"
    proof = surely(int(hopeless.sum()), case.n) > MISSED
    return Finding(bool(lost.any()), float(lost.float().mean()), 0.0, words, proof)


@diagnostic(
    "gradient-scale",
    kind="cause",
    source="Hinton, Sabour, Frosst 2018",
    remedy="Attack logits before they saturate, with a loss that no scale changes (margin, DLR).",
)
def gradient_scale(
    case: Case, *, orders: Annotated[float, Field(gt=0, description="orders of magnitude that are too many")] = 4.0
) -> Finding:
    """Gradients far smaller than the slope between images of two classes: the function is flat where attacks begin."""
    size = case.once(secant)
    words = f"the gradient at the images is 10^{size:.1f} of the slope towards images of other classes"
    return Finding(size < -orders, size, -orders, words)


@diagnostic(
    "finite-difference",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018; Carlini et al. 2019",
    remedy="Substitute the backward pass (BPDA) or attack without gradients: autograd does not tell the truth.",
)
def finite_difference(case: Case, *, least: Cosine = HALF) -> Finding:
    """Whether moves change the outputs as autograd foretells, whatever the size of the move."""
    cosine = case.once(agreement)
    words = f"derivatives by autograd and by finite differences have a cosine of {cosine:.2f}"
    return Finding(cosine < least, cosine, least, words)


@diagnostic(
    "loss-surface",
    kind="cause",
    source="Ilyas, Engstrom, Madry 2019; Xiao, Zhong, Zheng 2020",
    remedy="Average gradients over a neighbourhood, restart often, or attack without gradients.",
)
def loss_surface(case: Case, *, least: Cosine = HALF) -> Finding:
    """Whether a gradient still holds a tenth of eps away; where it does not, each step is a leap in the dark."""
    cosine = case.once(smoothness)
    words = f"gradients at an image and a tenth of eps beside it have a cosine of {cosine:.2f}"
    return Finding(cosine < least, cosine, least, words)


@diagnostic(
    "randomised",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018",
    remedy="Average gradients over many passes (EOT), and judge by many passes.",
)
def randomised(
    case: Case, *, most: Annotated[float, Field(ge=0, description="largest share of chance in the margins")] = 1e-4
) -> Finding:
    """Whether the same image gets other answers, or other gradients, in another pass."""
    cosine, part = case.once(repeatability), case.once(chance)
    words = f"{part:.2g} of the margins is chance, and gradients of two passes have a cosine of {cosine:.2f}"
    return Finding(part > most or cosine < 1.0 - most, part, most, words, proof=part > LUCK or cosine < HALF)
