"""When routing counts as alive, soft or inert; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

RoutingStatus = Literal["alive", "soft", "inert"]
CLASS_LAYER = "classes"
MAX_ENTROPY, MAX_CLASS_ENTROPY = 0.8, 0.5
"""Largest normalised entropy of sharp assignments, in layers below the class capsules and in those."""
ALIVE_CHANGES, INERT_CHANGES = 0.2, 0.05
"""Shares of predictions that uniform assignments change: routing that changes more is alive, less is inert."""


def routing_status(entropies: Mapping[str, float], changed: float) -> RoutingStatus:
    """Return 'alive', 'soft' or 'inert' from the entropy by layer and the share of changed predictions."""
    if changed < INERT_CHANGES:
        return "inert"
    limits = {layer: MAX_CLASS_ENTROPY if layer == CLASS_LAYER else MAX_ENTROPY for layer in entropies}
    sharp = all(entropy <= limits[layer] for layer, entropy in entropies.items())
    return "alive" if sharp and changed >= ALIVE_CHANGES else "soft"
