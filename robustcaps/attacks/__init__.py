"""Attacks and how they are evaluated; `robustcaps.attacks.catalogue` registers the built-in ones.

The names below are loaded when first used, so that torch-free modules such as `violations` stay torch-free.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustcaps.attacks.base import Attack, attack
    from robustcaps.attacks.budgets import Budget
    from robustcaps.attacks.catalogue import load_attack
    from robustcaps.attacks.goals import Goal, GoalSpec, Targeted, Untargeted

_HOMES = {
    "Attack": "base",
    "Budget": "budgets",
    "Goal": "goals",
    "GoalSpec": "goals",
    "Targeted": "goals",
    "Untargeted": "goals",
    "attack": "base",
    "load_attack": "catalogue",
}

__all__ = ["Attack", "Budget", "Goal", "GoalSpec", "Targeted", "Untargeted", "attack", "load_attack"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'robustcaps.attacks' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"robustcaps.attacks.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
