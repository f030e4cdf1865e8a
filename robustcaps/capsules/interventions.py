"""Interventions in routing: what a network predicts when part of its routing is switched off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Intervention:
    """A change of routing in all capsule layers; predictions that do not change did not depend on it."""

    name: str
    uniform: bool = False
    """All assignments stay as they start: equal for all parents."""
    constant_sigma: bool = False
    """sigma is replaced in the logits by its geometric mean over the layer, so that only the support counts."""
    iterations: int | None = None
    """Routing stops after so many iterations."""


UNIFORM = Intervention("uniform assignments", uniform=True)
CONSTANT_SIGMA = Intervention("constant sigma", constant_sigma=True)


def fewer_iterations(iterations: int) -> tuple[Intervention, ...]:
    """Return the interventions that stop routing before its last iteration."""
    counts = range(1, iterations)
    return tuple(Intervention(f"{k} iteration{'s' if k > 1 else ''}", iterations=k) for k in counts)
