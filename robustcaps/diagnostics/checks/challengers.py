"""Challenger attacks, which a sound gradient attack should not lose to: each returns one image per attacked sample."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.gradient_based.iterative import IterativeAttack, SingleStepAttack
from robustcaps.diagnostics.checks.baseline_attack import baseline_model
from robustcaps.diagnostics.checks.context import DiagnosisContext

Challenger = Callable[[DiagnosisContext, Tensor], Tensor]
"""(context, rows) -> one image per row."""


class LogProbabilities(nn.Module):
    """The logarithm of a model's output probabilities: its logits up to a constant, without saturation."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return log p, which stays finite where p has underflowed."""
        log: Tensor = self.model(images).clamp_min(1e-45).log()
        return log


def attack_with_noise(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Try random points of the ball."""
    return context.run_attack(load_attack("noise", tries=20, eps=context.eps, norm=context.budget.norm), rows)


def attack_with_one_step(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Take one step of size eps along the gradient of the baseline loss (FGSM)."""
    return context.run_attack(SingleStepAttack(loss=context.baseline_loss), rows, model=baseline_model(context))


def attack_with_unsaturated_losses(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Maximise the margin and the log-odds, of the outputs and, if these are probabilities, of their logarithm."""
    models = [context.counted]
    if outputs_are_probabilities(context):
        models.append(context.count(LogProbabilities(context.shielded)))
    losses = ("margin", "log-odds")
    attempts = [(loss, model) for model in models for loss in losses]
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for loss, model in attempts:
        options = {"steps": context.baseline.steps, "random_start": True, "early_stop": not context.is_randomised}
        attack = IterativeAttack(loss=loss, **options)  # type: ignore[arg-type]
        best[remaining] = context.run_attack(attack, rows[remaining], model=model)
        remaining = remaining[~context.is_fooled(best[remaining], rows[remaining])]
    return best


def outputs_are_probabilities(context: DiagnosisContext) -> bool:
    """Return whether the outputs are non-negative and sum to 1."""
    sums = context.outputs.sum(1)
    return bool((context.outputs >= 0).all()) and bool((sums - 1.0).abs().max() < 1e-3)
