"""Routing as pure functions on tensors: the definition that the fused kernels must match.

Votes are always (..., parents, children, pose), so that all votes for one parent are contiguous.
"""

from robustcaps.capsules.routing.connectivity import Wiring, convolution, fully_connected
from robustcaps.capsules.routing.dynamic import (
    Update,
    dynamic_routing,
    length_logit,
    squash,
    squashed_length,
    vector_votes,
)
from robustcaps.capsules.routing.em import (
    Activation,
    Competition,
    Routed,
    Step,
    e_step,
    em_routing,
    em_steps,
    m_step,
    matrix_votes,
    parent_logits,
    route_votes,
)

__all__ = [
    "Activation",
    "Competition",
    "Routed",
    "Step",
    "Update",
    "Wiring",
    "convolution",
    "dynamic_routing",
    "e_step",
    "em_routing",
    "em_steps",
    "fully_connected",
    "length_logit",
    "m_step",
    "matrix_votes",
    "parent_logits",
    "route_votes",
    "squash",
    "squashed_length",
    "vector_votes",
]
