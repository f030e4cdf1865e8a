"""AutoAttack: the ensemble that robustness papers report (Croce and Hein, ICML 2020)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from robustcaps.attacks.base import Attack
from robustcaps.attacks.composite.bisection import WorstCase
from robustcaps.attacks.composite.inner_attack import build_inner_attack
from robustcaps.attacks.gradient_based.apgd import TargetedAutoPgd
from robustcaps.registry import ATTACKS

Version = Literal["standard", "rand"]
PARTS: dict[Version, tuple[dict[str, str | int], ...]] = {
    "standard": (
        {"use": "apgd-ce", "steps": 100},
        {"use": "apgd-t", "steps": 100, "targets": 9},
        {"use": "fab-t", "steps": 100, "targets": 9},
        {"use": "square", "queries": 5000},
    ),
    "rand": (
        {"use": "apgd-ce", "steps": 100, "eot": 20},
        {"use": "apgd-dlr", "steps": 100, "eot": 20},
    ),
}
"""The attacks of each version, in order; each runs on the survivors of those before."""


@ATTACKS.register("autoattack")
def autoattack(
    *, version: Annotated[Version, Field(description="standard, or rand for randomised models")] = "standard"
) -> Attack:
    """AutoAttack: APGD-CE, APGD-T, FAB-T and Square on each other's survivors (Croce and Hein 2020)."""
    parts = [build_inner_attack(dict(part)) for part in PARTS[version]]
    for part in parts:
        if isinstance(part, TargetedAutoPgd):
            part.skips_few_classes = True
    return WorstCase(parts)
