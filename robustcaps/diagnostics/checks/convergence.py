"""The model's own gradients with more effort: steps are doubled until that fools no further samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from robustcaps.attacks import load_attack
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.gradient_based.iterative import IterativeAttack
from robustcaps.attacks.losses import DLR_CLASSES, Loss, margin_loss
from robustcaps.diagnostics.checks.baseline_attack import baseline_model
from robustcaps.diagnostics.checks.context import DiagnosisContext

MAX_DOUBLINGS = 4
"""How often the steps of the baseline attack are doubled at most."""
CONVERGED_SHARE = 0.01
"""A doubling that fools fewer samples than this share ends the series: two runs with different random starts differ as
much."""
TARGETED_STEPS = 50
"""Steps of APGD-T, which follows the same gradients towards every likely class: untargeted ascent may stop at a maximum
of one class."""
NOISE_PASSES = 10
"""Passes that the gradient of a randomised model is averaged over, or restarts that spend the same passes without."""


@dataclass(frozen=True, eq=False)
class LongerRuns:
    """What longer runs of the baseline attack and of one on the margin found."""

    images: Tensor
    """The first misclassified result for each of the rows, else the last result."""
    steps: tuple[int, ...]
    """Steps of each run."""
    gained: tuple[int, ...]
    """Samples that each run fooled in addition to those before."""
    converged: bool
    """Whether the last run fooled next to none."""


def run_longer(context: DiagnosisContext, rows: Tensor) -> LongerRuns:
    """Attack some rows with more and more steps; a randomised model gets as many passes as averaging would take."""
    images, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    steps, gained, converged = [], [], True
    for number, attacks in enumerate(_series(context)):
        before = len(remaining)
        for loss, model, attack in attacks:
            if len(remaining):
                options = {"model": model, "repetition": 2 * number + (loss is margin_loss)}
                images[remaining] = context.run_attack(attack, rows[remaining], **options)  # type: ignore[arg-type]
                remaining = remaining[~context.is_fooled(images[remaining], rows[remaining])]
        steps.append(attacks[-1][2].steps)
        gained.append(before - len(remaining))
        converged = context.is_randomised or gained[-1] <= CONVERGED_SHARE * context.n
        if not len(remaining) or (converged and not context.is_randomised):
            break
    if len(remaining) and not context.is_randomised and context.outputs.shape[1] >= DLR_CLASSES:
        targeted = load_attack("apgd-t", steps=TARGETED_STEPS, eps=context.eps, norm=context.budget.norm)
        images[remaining] = context.run_attack(targeted, rows[remaining])
        remaining = remaining[~context.is_fooled(images[remaining], rows[remaining])]
    return LongerRuns(images, tuple(steps), tuple(gained), converged or not len(remaining))


def _series(context: DiagnosisContext) -> Iterator[list[tuple[Loss, CountedModel, IterativeAttack]]]:
    """Yield pairs of attacks, on the baseline loss and on the margin."""
    settings = [(context.baseline_loss, baseline_model(context)), (margin_loss, context.counted)]
    for number in range(NOISE_PASSES // 2 if context.is_randomised else MAX_DOUBLINGS):
        doublings, restarts = (0, 1) if context.is_randomised else (number + 1, 2)
        steps = 2**doublings * context.baseline.steps
        step = max(2.5 / steps, context.baseline.step / 2**doublings)
        options = {"steps": steps, "step": min(1.0, step), "restarts": restarts, "random_start": True}
        options["early_stop"] = not context.is_randomised
        yield [(loss, model, IterativeAttack(loss=loss, **options)) for loss, model in settings]
