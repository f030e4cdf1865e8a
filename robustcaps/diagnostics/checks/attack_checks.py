"""Checks that compare attacks: a gradient attack on a sound model should not lose to attacks with less information.

Shares of samples are judged by the lower end of their 95 % Wilson interval, so that chance alone rarely flags a model.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.guard import find_violations
from robustcaps.diagnostics.checks import challengers
from robustcaps.diagnostics.checks.adaptive_attacks import has_misleading_gradients, select_adaptive_attacks
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.baseline_attack import (
    baseline_gradient,
    baseline_survivors,
    run_baseline,
    run_pgd,
)
from robustcaps.diagnostics.checks.context import AttackOutcome, DiagnosisContext
from robustcaps.diagnostics.checks.convergence import LongerRuns, run_longer
from robustcaps.diagnostics.checks.gradient_free import attack_with_descent, attack_with_square
from robustcaps.diagnostics.checks.gradient_measures import MIN_COSINE, gradient_smoothness, is_degenerate
from robustcaps.diagnostics.checks.limits import PROOF_SHARE, SIGN_SHARE, lower_bound
from robustcaps.diagnostics.checks.surrogate_model import attack_via_surrogate
from robustcaps.diagnostics.checks.wrong_gradients import has_wrong_gradients

CONVERGENCE_STEPS = 10
"""Number of last steps over which the growth of the loss is reported."""

ToleratedShare = Annotated[
    float, Field(ge=0, lt=1, description="tolerated share of samples that the attack fails on but should not")
]


def run_challenger(context: DiagnosisContext, name: str, attack: challengers.Challenger, rows: Tensor) -> Tensor:
    """Return which samples (n,) an attack on some rows fools; each attack runs once per diagnosis."""
    if name not in context.outcomes:
        fooled = torch.zeros(context.n, dtype=torch.bool, device=context.device)
        if len(rows):
            images = attack(context, rows)
            violations = find_violations(images, context.images[rows], context.budget)
            valid = torch.tensor([not violation for violation in violations], device=context.device)
            fooled[rows] = context.is_fooled(images, rows) & valid
        context.outcomes[name] = AttackOutcome(rows, fooled)
    return context.outcomes[name].fooled


def gradient_survivors(context: DiagnosisContext) -> Tensor:
    """Return the rows that withstand the model's own gradients: the baseline, unsaturated losses, and more steps.

    On the others it is the loss or the effort that failed, not the gradient. Where gradients are shown to be wrong,
    more steps along them are no excuse: they may fool samples by chance.
    """
    rows = loss_survivors(context)
    context.cached(longer_runs)
    if context.cached(has_wrong_gradients):
        return rows
    return rows[~context.outcomes["more steps"].fooled[rows]]


def loss_survivors(context: DiagnosisContext) -> Tensor:
    """Return the rows that withstand the baseline attack with its own loss and with unsaturated losses."""
    rows = context.cached(baseline_survivors)
    fooled = run_challenger(context, "unsaturated losses", challengers.attack_with_unsaturated_losses, rows)
    return rows[~fooled[rows]]


def longer_runs(context: DiagnosisContext) -> LongerRuns:
    """Run the model's own gradients with more steps on what withstands fewer."""
    rows = loss_survivors(context)
    runs = run_longer(context, rows)
    run_challenger(context, "more steps", lambda _, __: runs.images, rows)
    return runs


def compare_with_gradient_attacks(
    context: DiagnosisContext, attacks: dict[str, challengers.Challenger], share: float
) -> Finding:
    """Flag a model if too many samples withstand gradient attacks but fall to any of the other attacks."""
    rows = context.cached(gradient_survivors)
    fooled = {name: run_challenger(context, name, attack, rows) for name, attack in attacks.items()}
    count = int(torch.stack(list(fooled.values())).any(0).sum())
    low = lower_bound(count, context.n)
    counts = ", ".join(f"{int(mask.sum())} fall to {name}" for name, mask in fooled.items())
    words = f"{len(rows)} of {context.n} samples withstand gradient attacks; of these, {counts}"
    if not len(rows):
        words = f"all {context.n} samples fall to gradient attacks"
    return Finding(low > share, count / context.n, share, words, proof=low > max(share, PROOF_SHARE))


@diagnostic(
    "saturated-loss",
    kind="effect",
    source="Carlini, Wagner 2017; Croce, Hein 2020",
    remedy="Attack unsaturated logits with the margin or log-odds; take the logarithm of probabilities.",
)
def saturated_loss(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """The loss of the baseline attack saturates: an unsaturated loss fools samples that withstand it.

    Measures the share of samples that fall to the margin or the log-odds but not to the baseline loss (Carlini and
    Wagner 2017; Croce and Hein 2020). Flagged if the lower bound of the share where the baseline loss is flat exceeds
    `share`, or that of all of them 0.05. The latter is also a proof for the losses 'ce-scores' and 'training', while
    'ce' needs a flat loss on more than 0.05.
    """
    survivors = context.cached(baseline_survivors)
    fooled = run_challenger(context, "unsaturated losses", challengers.attack_with_unsaturated_losses, survivors)
    start = context.cached(baseline_gradient)
    flat = (start.value == 0) | is_degenerate(start.gradient)
    count, flat_count = int(fooled.sum()), int((fooled & flat).sum())
    low, flat_low = lower_bound(count, context.n), lower_bound(flat_count, context.n)
    words = (
        f"{len(survivors)} of {context.n} samples withstand the baseline attack; of these, {count} fall to unsaturated "
        f"losses, including {flat_count} where the baseline loss is flat"
    )
    proof = max(flat_low, low if context.baseline.loss != "ce" else 0.0) > PROOF_SHARE
    return Finding(flat_low > share or low > PROOF_SHARE, count / context.n, share, words, proof)


@diagnostic(
    "one-step-beats-iterative",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018",
    remedy="Smooth the gradient, use restarts, or attack without gradients: it misleads after the first step.",
)
def one_step_beats_iterative(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """A single step of size eps fools samples that withstand iterative attacks.

    Measures their share (Athalye et al. 2018). Flagged if its lower bound exceeds `share`, a proof above 0.05.
    """
    return compare_with_gradient_attacks(context, {"one step": challengers.attack_with_one_step}, share)


@diagnostic(
    "black-box-beats-white-box",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018; Papernot et al. 2017; Andriushchenko et al. 2020",
    remedy="Report the black-box robust accuracy, and find out what breaks the gradient.",
)
def black_box_beats_white_box(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """Black-box attacks (Square, NES, transfer from a surrogate) fool samples that withstand gradient attacks.

    Measures their share (Athalye et al. 2018), with the Square attack (Andriushchenko et al. 2020), with descent along
    finite differences in a growing subspace (Ilyas et al. 2018), and with a surrogate trained on the model's
    predictions (Papernot et al. 2017). Flagged if its lower bound exceeds `share`, a proof above 0.05.
    """
    return compare_with_gradient_attacks(context, select_black_box_attacks(context), share)


@diagnostic(
    "noise-beats-gradient",
    kind="effect",
    source="Carlini et al. 2019",
    remedy="Find out what breaks the gradient, and attack without gradients: random noise works better.",
)
def noise_beats_gradient(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """Random noise in the ball fools samples that withstand gradient attacks.

    Measures their share, with 20 random points per sample (Carlini et al. 2019). Flagged if its lower bound exceeds
    `share`, a proof above 0.05.
    """
    return compare_with_gradient_attacks(context, {"noise": challengers.attack_with_noise}, share)


@diagnostic(
    "steps-converged",
    kind="attack",
    source="Carlini et al. 2019; Pintor et al. 2022",
    remedy="Increase the number of steps and restarts until the robust accuracy no longer changes.",
)
def steps_converged(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """The model's own gradients have not converged: the last doubling of steps still fools more samples.

    Steps are doubled, with two restarts, until a doubling fools at most 1 % of the samples (Carlini et al. 2019;
    incomplete optimisation in Pintor et al. 2022). Flagged if the lower bound of the share that the fourth doubling
    still fools exceeds `share`; never a proof. What more steps find counts as the model's own gradients' success.
    """
    runs = context.cached(longer_runs)
    gained, last = sum(runs.gained), 0 if runs.converged or not runs.gained else runs.gained[-1]
    state = "converged" if runs.converged else "not converged"
    words = f"{gained} of {context.n} samples fall only to more than {context.baseline.steps} steps or to restarts"
    if runs.steps:
        words += f"; {state} at {runs.steps[-1]} steps"
    return Finding(lower_bound(last, context.n) > share, last / context.n, share, words)


@diagnostic(
    "silent-success",
    kind="attack",
    source="Carlini et al. 2019; Pintor et al. 2022",
    remedy="Return the iterate that fooled the model, not the last one.",
)
def silent_success(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """Standard PGD finds adversarial examples on the way but returns a last iterate that is not adversarial.

    Measures the share of samples fooled by some iterate but not by the last one (silent success in Pintor et al. 2022).
    Flagged if its lower bound exceeds `share`; never a proof.
    """
    run = context.cached(run_baseline)
    count = int((run.fooled & ~run.last_fooled).sum())
    words = f"{count} of {context.n} samples are fooled by an earlier iterate but not by the last one"
    return Finding(lower_bound(count, context.n) > share, count / context.n, share, words)


@diagnostic(
    "eps-monotone",
    kind="attack",
    source="Carlini et al. 2019",
    remedy="Adjust the step size and use restarts: every adversarial example at eps is also one at 2 eps.",
)
def eps_monotone(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """The baseline attack fails at 2 eps on samples that it fools at eps, which a larger ball should never cause.

    Measures their share (Carlini et al. 2019). Flagged if its lower bound exceeds `share`; never a proof.
    """
    rows = torch.nonzero(context.cached(run_baseline).fooled).flatten()
    count = 0
    if len(rows):
        double = 2.0 * context.eps
        wider = Budget(min(1.0, double) if context.budget.norm == "linf" else double, context.budget.norm)
        count = int((~run_pgd(context, rows, wider, context.baseline.steps).fooled).sum())
    words = f"the baseline attack fools {count} of {context.n} samples at eps but not at 2 eps"
    return Finding(lower_bound(count, context.n) > share, count / context.n, share, words)


@diagnostic(
    "unbounded",
    kind="attack",
    source="Athalye, Carlini, Wagner 2018; Pintor et al. 2022",
    remedy="Fix the attack: without a bound it must always succeed, so its failure is no robustness.",
)
def unbounded(
    context: DiagnosisContext, *, steps: Annotated[int, Field(ge=1, description="gradient steps")] = 40
) -> Finding:
    """The baseline attack fails although it may change the image without bound, where no model can be robust.

    Measures the share of samples that withstand it (Athalye et al. 2018; unconstrained attack failure in Pintor et al.
    2022). Flagged, and a proof, if its lower bound exceeds chance, 1 / classes.
    """
    radius = 1.0 if context.budget.norm == "linf" else context.images[0].numel() ** 0.5
    rows = context.cached(baseline_survivors)
    budget = Budget(radius, context.budget.norm)
    count = int((~run_pgd(context, rows, budget, steps).fooled).sum()) if len(rows) else 0
    chance = 1.0 / context.outputs.shape[1]
    words = f"{count} of {context.n} samples withstand the baseline attack even without a bound"
    flagged = lower_bound(count, context.n) > chance
    return Finding(flagged, count / context.n, chance, words, proof=flagged)


@diagnostic(
    "adaptive",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018; Gu, Wu, Tresp 2021; Tramer et al. 2020",
    remedy="Report the corrected robust accuracy: the naive one overestimates the model's robustness.",
)
def adaptive(context: DiagnosisContext, *, share: ToleratedShare = SIGN_SHARE) -> Finding:
    """Adaptive attacks (rebuilt gradients, votes, inner logits, EOT, smoothing) fool samples that withstand PGD.

    Measures their share over the attacks that fit the model and its gradients (Athalye et al. 2018; Tramer et al. 2020;
    Gu et al. 2021 for votes). Flagged if its lower bound exceeds `share`, a proof above 0.05.
    """
    attacks = select_adaptive_attacks(context)
    if not attacks:
        return Finding(flagged=False, value=0.0, threshold=share, words="the model calls for no adaptive attack")
    return compare_with_gradient_attacks(context, attacks, share)


def select_black_box_attacks(context: DiagnosisContext) -> dict[str, challengers.Challenger]:
    """Return Square and a transfer attack, and NES where gradients are in doubt or Square fooled a sample."""
    attacks: dict[str, challengers.Challenger] = {"square": attack_with_square, "surrogate": attack_via_surrogate}
    square = run_challenger(context, "square", attack_with_square, context.cached(gradient_survivors))
    is_rough = context.cached(gradient_smoothness) < MIN_COSINE
    if is_rough or has_misleading_gradients(context) or bool(square.any()):
        attacks["nes"] = attack_with_descent
    return attacks


def fooled_by_any_attack(context: DiagnosisContext) -> Tensor:
    """Return which samples (n,) the baseline or any other attack fooled."""
    fooled = context.cached(run_baseline).fooled
    for outcome in context.outcomes.values():
        fooled = fooled | outcome.fooled
    return fooled
