"""Routing as pure functions on tensors: the definition that the fused kernels must match.

Votes are always (..., parents, children, pose), so that all votes for one parent are contiguous.
"""

from robustcaps.capsules.routing.connectivity import Pairing, Wiring, convolution, fully_connected
from robustcaps.capsules.routing.dynamic import (
    Update,
    coupling_coefficients,
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
    Start,
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
    "Pairing",
    "Routed",
    "Start",
    "Step",
    "Update",
    "Wiring",
    "convolution",
    "coupling_coefficients",
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
