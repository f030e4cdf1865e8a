"""Checks of the gradients: whether they exist, agree with finite differences, and hold in a neighbourhood."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from robustcaps.diagnostics.checks.autograd_graph import compare_graph
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.baseline_attack import baseline_gradient
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.finite_differences import compare_finite_differences
from robustcaps.diagnostics.checks.gradient_measures import (
    MIN_COSINE,
    clean_margin_gradient,
    gradient_repeatability,
    gradient_smoothness,
    gradient_to_secant,
    is_degenerate,
    margin_noise,
)
from robustcaps.diagnostics.checks.limits import PROOF_SHARE, lower_bound

WrongShare = Annotated[float, Field(ge=0, lt=1, description="tolerated share of samples with a wrong gradient")]
MinCosine = Annotated[float, Field(ge=-1, le=1, description="smallest cosine that is not flagged")]


@diagnostic(
    "zero-gradient",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018; Hinton, Sabour, Frosst 2018; Pintor et al. 2022",
    remedy="Attack logits before they saturate, substitute the backward pass (BPDA), or attack without gradients.",
)
def zero_gradient(context: DiagnosisContext) -> Finding:
    """The gradient of some samples is zero everywhere or not finite, so that no gradient attack can move them.

    Measures their share for the baseline loss (Athalye et al. 2018; Hinton et al. 2018; unavailable gradients in Pintor
    et al. 2022). Flagged if there are any; a proof if the lower bound of the share for the output margin exceeds 0.05.
    """
    gradient = context.cached(baseline_gradient).gradient
    degenerate, degenerate_margin = is_degenerate(gradient), is_degenerate(context.cached(clean_margin_gradient))
    zeros = float((gradient == 0).float().mean())
    words = (
        f"{int(degenerate.sum())} of {context.n} samples have no usable gradient; "
        f"{100 * zeros:.0f} % of all gradient entries are exactly zero"
    )
    if context.shielded.gradient_error:
        words += f" ({context.shielded.gradient_error})"
    proof = lower_bound(int(degenerate_margin.sum()), context.n) > PROOF_SHARE
    return Finding(bool(degenerate.any()), float(degenerate.float().mean()), 0.0, words, proof)


@diagnostic(
    "gradient-scale",
    kind="cause",
    source="Hinton, Sabour, Frosst 2018",
    remedy="Attack logits before they saturate, with a loss that is invariant to their scale (margin, DLR).",
)
def gradient_scale(
    context: DiagnosisContext,
    *,
    orders: Annotated[float, Field(gt=0, description="tolerated orders of magnitude below the slope")] = 4.0,
) -> Finding:
    """Gradients are orders of magnitude smaller than the slope towards other classes: flat where attacks start.

    Measures log10 of the ratio of the two for the output margin (after Hinton et al. 2018). Flagged below -`orders`;
    never a proof by itself.
    """
    ratio = context.cached(gradient_to_secant)
    words = f"the gradient at the images is 10^{ratio:.1f} times the mean slope towards images of other classes"
    return Finding(ratio < -orders, ratio, -orders, words)


@diagnostic(
    "finite-difference",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018; Carlini et al. 2019",
    remedy="Substitute the backward pass (BPDA) or attack without gradients: autograd is wrong here.",
)
def finite_difference(context: DiagnosisContext, *, share: WrongShare = PROOF_SHARE) -> Finding:
    """Gradients by autograd disagree with finite differences of the outputs on some samples.

    Measures the share of samples on which autograd leaves more than a tenth of the squared differences unexplained, of
    those where the surface is straight enough to tell (after Carlini et al. 2019). Flagged if the lower bound exceeds
    `share`; never a proof by itself.
    """
    compared = context.cached(compare_finite_differences)
    count, judged = int(compared.disagrees.sum()), int(compared.judged.sum())
    words = (
        f"autograd and finite differences disagree on {count} of {judged} samples, "
        f"along {100 * compared.direction_share:.0f} % of the directions"
    )
    return Finding(lower_bound(count, judged) > share, count / max(1, judged), share, words)


@diagnostic(
    "autograd-graph",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018; Tramer et al. 2020",
    remedy="Differentiate what the model computes: remove detached parts, hooks and custom backward functions.",
)
def autograd_graph(context: DiagnosisContext, *, share: WrongShare = PROOF_SHARE) -> Finding:
    """Gradients by autograd differ from the chain rule over the operations that the model runs.

    Measures the share of samples whose gradient has a cosine below 0.99 with that of the recorded operations, steps
    such as rounding differentiated as such or by a substitute, whichever is closer (after Athalye et al. 2018). Flagged
    if the lower bound exceeds `share`; never a proof by itself.
    """
    graph = context.cached(compare_graph)
    if not graph.usable:
        words = "the recorded operations have no gradient to compare with"
        return Finding(flagged=False, value=0.0, threshold=share, words=words)
    count, n = int(graph.differs.sum()), len(graph.differs)
    words = (
        f"gradients by autograd and by the recorded operations differ on {count} of {n} samples "
        f"(mean cosine {graph.cosine:.2f})"
    )
    return Finding(lower_bound(count, n) > share, count / n, share, words)


@diagnostic(
    "loss-surface",
    kind="cause",
    source="Ilyas, Engstrom, Madry 2019; Xiao, Zhong, Zheng 2020",
    remedy="Average gradients over a neighbourhood, use many restarts, or attack without gradients.",
)
def loss_surface(context: DiagnosisContext, *, least: MinCosine = MIN_COSINE) -> Finding:
    """The loss surface is so rough that gradients change direction within a tenth of eps.

    Measures the mean cosine of the gradients at an image and at a random neighbour (Ilyas et al. 2019; Xiao et al.
    2020). Flagged below `least`; never a proof by itself.
    """
    cosine = context.cached(gradient_smoothness)
    words = f"gradients at an image and 0.1 eps away from it have a mean cosine of {cosine:.2f}"
    return Finding(cosine < least, cosine, least, words)


@diagnostic(
    "randomised",
    kind="cause",
    source="Athalye, Carlini, Wagner 2018",
    remedy="Average gradients over many passes (EOT), and evaluate adversarial examples with many passes.",
)
def randomised(
    context: DiagnosisContext,
    *,
    most: Annotated[float, Field(ge=0, description="largest relative noise of the margins that is not flagged")] = 1e-4,
) -> Finding:
    """Outputs or gradients differ between two passes over the same image.

    Measures the relative noise of the output margins and the cosine of the gradients of two passes (Athalye et al.
    2018). Flagged if the noise exceeds `most` or the cosine is below 1 - `most`. Never a proof: `adaptive` tells
    whether the noise misleads attacks, by averaging gradients.
    """
    cosine, noise = context.cached(gradient_repeatability), context.cached(margin_noise)
    words = (
        f"margins have a relative standard deviation of {noise:.2g} between passes; "
        f"gradients of two passes have a mean cosine of {cosine:.2f}"
    )
    return Finding(noise > most or cosine < 1.0 - most, noise, most, words)
