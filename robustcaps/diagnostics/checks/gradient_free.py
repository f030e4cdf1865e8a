"""Gradient-free challengers, which depend on nothing but outputs, with an effort that follows what is at stake."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.attacks import load_attack
from robustcaps.attacks.base import Attack
from robustcaps.diagnostics.checks.context import DiagnosisContext
from robustcaps.diagnostics.checks.gradient_measures import evenly_spaced

SQUARE_QUERIES, NES_STEPS, NES_PAIRS = 1000, 30, 20
"""Queries of the Square attack, which is never stopped early, and steps and pairs of queries of NES."""
PROBED_SAMPLES = 60
"""Samples that a gradient-free attack begins with. If it fools none of 60, then with a probability of 98 % it would
fool less than 5 % of all (Beta posterior), and the others are left alone."""
MORE_EFFORT = 3
"""Factor on the queries of a second attempt, with other random numbers."""


def attack_with_square(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run the Square attack (Andriushchenko et al. 2020)."""
    return _attack_in_stages(context, rows, _square(context, SQUARE_QUERIES))


def attack_with_descent(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Descend along finite differences in a growing subspace (NES)."""
    return _attack_in_stages(context, rows, _nes(context, NES_STEPS))


def attack_with_more_queries(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Run the Square attack again with more queries and other random numbers."""
    return _attack_in_stages(context, rows, _square(context, MORE_EFFORT * SQUARE_QUERIES), repetition=1)


def _square(context: DiagnosisContext, queries: int) -> Attack:
    return load_attack("square", queries=queries, eps=context.eps, norm=context.budget.norm)


def _nes(context: DiagnosisContext, steps: int) -> Attack:
    return load_attack("nes", steps=steps, pairs=NES_PAIRS, eps=context.eps, norm=context.budget.norm)


def _attack_in_stages(context: DiagnosisContext, rows: Tensor, attack: Attack, *, repetition: int = 0) -> Tensor:
    """Attack some of the rows, and the others if that fooled any."""
    images, probed = context.images[rows], torch.isin(rows, evenly_spaced(rows, PROBED_SAMPLES))
    images[probed] = context.run_attack(attack, rows[probed], repetition=repetition)
    if bool(context.is_fooled(images[probed], rows[probed]).any()) and not bool(probed.all()):
        images[~probed] = context.run_attack(attack, rows[~probed], repetition=repetition)
    return images
