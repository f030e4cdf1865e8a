"""The attacks, one file per family; importing this package registers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robustcaps.attacks import (
    apgd,
    baselines,
    bisection,
    carlini_wagner,
    deepfool,
    gradient,
    reconstruction,
    square,
    transfer,
    votes,
)
from robustcaps.attacks.base import Attack, attack
from robustcaps.attacks.budgets import Budget, Unit
from robustcaps.attacks.goals import Aim, Goal, Targeted, Untargeted
from robustcaps.attacks.norms import NormName
from robustcaps.options import validate_options
from robustcaps.registry import ATTACKS

__all__ = [
    "Aim",
    "Attack",
    "Budget",
    "Goal",
    "Targeted",
    "Untargeted",
    "apgd",
    "attack",
    "baselines",
    "bisection",
    "carlini_wagner",
    "deepfool",
    "gradient",
    "load_attack",
    "reconstruction",
    "square",
    "transfer",
    "votes",
]

ATTACKS.provide("torchattacks", "robustcaps.attacks.adapters.torchattacks_attacks", extra="attacks")
ATTACKS.provide("foolbox", "robustcaps.attacks.adapters.foolbox_attacks", extra="attacks")


def load_attack(
    use: str,
    *,
    eps: float | Sequence[float] | None = None,
    norm: NormName = "linf",
    unit: Unit = "pixel",
    goal: str = "untargeted",
    target: int | str | None = None,
    name: str | None = None,
    max_queries: int | None = None,
    **options: Any,
) -> Attack:
    """Return a registered attack with its options, its budgets (one per eps) and its aim; `name` renames it.

    `max_queries`: how often it may ask the attacked model about a sample, for each eps.
    """
    entry = ATTACKS.entry(use)
    known = ("eps", "norm", "unit", "goal", "target", "name", "max_queries")
    made = entry.factory(**validate_options(entry.factory, options, where=f"attack '{use}'", known=known))
    made.name = use
    return made.at(eps, norm=norm, unit=unit, goal=goal, target=target, name=name, max_queries=max_queries)
