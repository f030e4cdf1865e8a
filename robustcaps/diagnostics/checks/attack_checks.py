"""Who wins: a gradient attack that sees everything must not lose against attacks that see less."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.guard import proposal_violations
from robustcaps.diagnostics.checks import challengers
from robustcaps.diagnostics.checks.base import Finding, diagnostic
from robustcaps.diagnostics.checks.baseline_attack import climb, left, textbook_attack, textbook_start
from robustcaps.diagnostics.checks.context import Case, Contest
from robustcaps.diagnostics.checks.gradient_measures import HALF, agreement, margin_gradient, smoothness, useless
from robustcaps.diagnostics.checks.inner_logits import by_inner_answers, inner_parts
from robustcaps.models.base import CapsuleClassifier
from robustcaps.utils.statistics import wilson

NOTICED = 0.02
"""Two runs of one attack on an honest model differ by a sample or two in a hundred: a share above is a sign."""
MISSED = 0.05
"""The largest share that textbook PGD leaves to far stronger ensembles on honest, adversarially trained models (Croce
and Hein 2020, table 2: mostly 1 to 4 points): a share that is surely above means that gradients mislead."""

Share = Annotated[float, Field(ge=0, lt=1, description="share of the samples that may be lost to the other attack")]


def surely(count: int, n: int) -> float:
    """Return the share that lies below the true one with 97.5 % confidence (Wilson)."""
    return float(wilson(count, n)[0])


def fooled_by(case: Case, name: str, propose: challengers.Propose, rows: Tensor) -> Tensor:
    """Return which samples (n,) an attack fools of those it is tried on; it is run once for a case."""
    if name not in case.contests:
        fooled = torch.zeros(case.n, dtype=torch.bool, device=case.device)
        if len(rows):
            images = propose(case, rows)
            allowed = [not broken for broken in proposal_violations(images, case.images[rows], case.budget)]
            fooled[rows] = case.fooled(images, rows) & torch.tensor(allowed, device=case.device)
        case.contests[name] = Contest(rows, fooled)
    return case.contests[name].fooled


def left_by_gradients(case: Case) -> Tensor:
    """Return the samples that neither the textbook attack nor the same with unsaturated losses fools.

    Only these are lost by gradients; what a better loss gets is lost by the loss.
    """
    rows = case.once(left)
    fooled = fooled_by(case, "unsaturated losses", challengers.by_unsaturated_losses, rows)
    return rows[~fooled[rows]]


def contest(case: Case, attacks: dict[str, challengers.Propose], share: float) -> Finding:
    """Hold gradient attacks against others: what counts is how many of their leftovers any of the others fools.

    `MISSED` is what textbook PGD leaves to ensembles, so that others are held against it together, too.
    """
    rows = case.once(left_by_gradients)
    fooled = {name: fooled_by(case, name, propose, rows) for name, propose in attacks.items()}
    count = int(torch.stack(list(fooled.values())).any(0).sum())
    low = surely(count, case.n)
    told = ", ".join(f"{name} fools {int(mask.sum())}" for name, mask in fooled.items())
    words = f"of {case.n} samples the gradient attacks leave {len(rows)}; of these {told}"
    return Finding(low > share, count / case.n, share, words, proof=low > max(share, MISSED))


@diagnostic(
    "saturated-loss",
    kind="effect",
    source="Carlini, Wagner 2017; Croce, Hein 2020",
    remedy="Attack unsaturated logits with the margin or log-odds; take the log of probabilities.",
)
def saturated_loss(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall to a loss no softmax or margin flattens, but not to the textbook one, which is flat there."""
    won = fooled_by(case, "unsaturated losses", challengers.by_unsaturated_losses, case.once(left))
    start = case.once(textbook_start)
    flat = (start.value == 0) | useless(start.gradient)
    count, flat_count = int(won.sum()), int((won & flat).sum())
    low, flat_low = surely(count, case.n), surely(flat_count, case.n)
    words = (
        f"of {case.n} samples the textbook attack leaves {len(case.once(left))}; of these unsaturated losses fool "
        f"{count}, {flat_count} of them where the textbook loss is flat"
    )
    proof = max(flat_low, low if case.textbook.loss != "ce" else 0.0) > MISSED
    return Finding(flat_low > share or low > MISSED, count / case.n, share, words, proof)


@diagnostic(
    "one-step-beats-iterative",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018",
    remedy="Do not trust the gradient after the first step: smooth it, restart, or attack without gradients.",
)
def one_step_beats_iterative(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall to one large step, but not to many small ones."""
    return contest(case, {"one step": challengers.by_one_step}, share)


@diagnostic(
    "black-box-beats-white-box",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018; Papernot et al. 2017; Andriushchenko et al. 2020",
    remedy="Report the black-box figure; look for what breaks the gradient.",
)
def black_box_beats_white_box(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall to attacks without the model's gradients (Square, a surrogate), but not to those with them."""
    return contest(case, challengers.BLACK_BOX, share)


@diagnostic(
    "noise-beats-gradient",
    kind="effect",
    source="Carlini et al. 2019",
    remedy="The gradient is worse than nothing: look for what breaks it, and attack without gradients.",
)
def noise_beats_gradient(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall to random points of the ball, but not to the gradient."""
    return contest(case, {"noise": challengers.by_noise}, share)


@diagnostic(
    "steps-converged",
    source="Carlini et al. 2019",
    remedy="More steps, and more restarts, until nothing changes.",
)
def steps_converged(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall once the textbook attack may go on: it was stopped too early."""
    rows = case.once(left)
    count = int(fooled_by(case, "more steps", challengers.by_more_steps, rows).sum())
    heights = case.once(textbook_attack).heights[:, rows].mean(1) if len(rows) else torch.zeros(1)
    before, end = float(heights[max(0, len(heights) - 11)]), float(heights[-1])
    rise = (end - before) / max(abs(end), 1e-12)
    words = f"twice the steps fool {count} of {case.n} samples more; the loss rose by {rise:.0%} in the last ten steps"
    return Finding(surely(count, case.n) > share, count / case.n, share, words)


@diagnostic(
    "silent-success",
    source="Carlini et al. 2019",
    remedy="Keep the iterate that fooled the model, not the last one.",
)
def silent_success(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that were fooled on the way, but not by the image that plain PGD returns: the last one."""
    trace = case.once(textbook_attack)
    lost = int((trace.fooled & ~trace.last_fooled).sum())
    words = f"{lost} of {case.n} samples were fooled on the way, but not at the end"
    return Finding(surely(lost, case.n) > share, lost / case.n, share, words)


@diagnostic(
    "eps-monotone",
    source="Carlini et al. 2019",
    remedy="A larger ball holds the smaller: whoever falls at eps falls at 2 eps. Mind the step size, and restart.",
)
def eps_monotone(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall at eps, but no longer at 2 eps: more room must not help the model."""
    rows = torch.nonzero(case.once(textbook_attack).fooled).flatten()
    safe = 0
    if len(rows):
        wider = Budget(2.0 * case.eps, case.budget.norm)
        safe = int((~climb(case, rows, wider, case.textbook.steps).fooled).sum())
    words = f"{safe} of {case.n} samples fall to the textbook attack at eps, but not at 2 eps"
    return Finding(surely(safe, case.n) > share, safe / case.n, share, words)


@diagnostic(
    "unbounded",
    source="Athalye, Carlini, Wagner 2018",
    remedy="With every image allowed, success is certain; an attack that fails then fails for other reasons.",
)
def unbounded(case: Case, *, steps: Annotated[int, Field(ge=1, description="gradient steps")] = 40) -> Finding:
    """Samples that the textbook attack cannot move even when every image is allowed: nothing can be robust then."""
    reach = 1.0 if case.budget.norm == "linf" else case.images[0].numel() ** 0.5
    rows = case.once(left)
    count = int((~climb(case, rows, Budget(reach, case.budget.norm), steps).fooled).sum()) if len(rows) else 0
    chance = 1.0 / case.outputs.shape[1]
    words = f"{count} of {case.n} samples are left when every image is allowed"
    flagged = surely(count, case.n) > chance
    return Finding(flagged, count / case.n, chance, words, proof=flagged)


@diagnostic(
    "adaptive",
    kind="effect",
    source="Athalye, Carlini, Wagner 2018; Gu, Wu, Tresp 2021; Tramer et al. 2020",
    remedy="Report the figure after the remedy; the textbook figure is not the model's robustness.",
)
def adaptive(case: Case, *, share: Share = NOTICED) -> Finding:
    """Samples that fall to remedies: votes, answers inside the network, EOT, straight-through, smoothed gradients."""
    wanted = remedies(case)
    if not wanted:
        return Finding(flagged=False, value=0.0, threshold=share, words="nothing called for a remedy")
    return contest(case, wanted, share)


def remedies(case: Case) -> dict[str, challengers.Propose]:
    """Return the adaptive attacks that the model's kind and its gradients call for."""
    gradient = case.once(margin_gradient)
    rough = case.once(smoothness) < HALF
    blocked = bool(useless(gradient).any())
    lying = case.once(agreement) < HALF
    wanted: dict[str, challengers.Propose] = {}
    if isinstance(case.model, CapsuleClassifier):
        wanted["votes"] = challengers.by_votes
    if case.once(inner_parts):
        wanted["inner answers"] = by_inner_answers
    if case.randomised:
        wanted["expectation over passes"] = challengers.by_expectation
    if (rough or blocked or lying) and challengers.replaceable_parts(case.model):
        wanted["straight-through"] = challengers.by_straight_through
    if rough and not bool(useless(gradient).all()):
        wanted["smoothed gradients"] = challengers.by_smoothing
    return wanted


def fooled_in_all(case: Case) -> Tensor:
    """Return which samples any attack fooled, the textbook one included."""
    fooled = case.once(textbook_attack).fooled
    for each in case.contests.values():
        fooled = fooled | each.fooled
    return fooled
