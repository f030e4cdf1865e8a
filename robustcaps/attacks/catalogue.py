"""The registered attacks: importing this module registers the built-in ones, `load_attack` loads any by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robustcaps.attacks import baselines
from robustcaps.attacks.base import Attack
from robustcaps.attacks.black_box import nes, square, transfer
from robustcaps.attacks.capsule_specific import reconstruction, vote
from robustcaps.attacks.composite import autoattack, bisection
from robustcaps.attacks.gradient_based import apgd, iterative
from robustcaps.attacks.minimum_norm import carlini_wagner, deepfool, fab
from robustcaps.attacks.spatial import search
from robustcaps.options import NormName, Unit, validate_options
from robustcaps.registry import ATTACKS

BUILT_IN = (
    apgd,
    autoattack,
    baselines,
    bisection,
    carlini_wagner,
    deepfool,
    fab,
    iterative,
    nes,
    reconstruction,
    search,
    square,
    transfer,
    vote,
)
"""Modules that register the built-in attacks."""

ATTACKS.provide("torchattacks", "robustcaps.attacks.adapters.torchattacks_attacks", extra="attacks")
ATTACKS.provide("foolbox", "robustcaps.attacks.adapters.foolbox_attacks", extra="attacks")


def load_attack(
    use: str,
    *,
    eps: float | Sequence[float] | None = None,
    norm: NormName | None = None,
    unit: Unit | None = None,
    goal: str = "untargeted",
    target: int | str | None = None,
    name: str | None = None,
    max_queries: int | None = None,
    **options: Any,
) -> Attack:
    """Return a registered attack with its options, budgets and goal.

    Args:
        use: The name of a registered attack; `list_attacks` lists them.
        eps: One or several perturbation sizes; each becomes a budget.
        norm: 'linf', 'l2', 'l1' or 'l0', 'affine' or 'viewpoint'; by default the attack's own, mostly 'linf'.
        unit: The unit of eps: 'pixel' for the range [0,1] or 'std' for standard deviations of each image, 'count' for
            l0 (changed values), 'degrees' for transformations; by default the first of these that the norm has.
        goal: 'untargeted' or 'targeted'.
        target: The target of a targeted goal: a class, 'every', 'least-likely' or 'random'.
        name: The name in rows and tables; `use` by default.
        max_queries: Maximum number of queries of the attacked model per sample and eps.
        **options: Options of the attack itself.
    """
    entry = ATTACKS.entry(use)
    known = ("eps", "norm", "unit", "goal", "target", "name", "max_queries")
    attack = entry.factory(**validate_options(entry.factory, options, where=f"attack '{use}'", known=known))
    attack.name = use
    return attack.configure(eps, norm=norm, unit=unit, goal=goal, target=target, name=name, max_queries=max_queries)
