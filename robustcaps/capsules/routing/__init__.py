"""Routing as pure functions on tensors: the definition that the fused kernels must match.

Votes are always (..., parents, children, pose), so that all votes for one parent are contiguous.
"""

from robustcaps.capsules.routing.attention import (
    exponential_length_logit,
    exponential_squash,
    exponential_squashed_length,
    inverted_attention_routing,
    self_attention_routing,
)
from robustcaps.capsules.routing.competition import log_coupling, uniform_coupling
from robustcaps.capsules.routing.connectivity import Pairing, Wiring, convolution, fully_connected
from robustcaps.capsules.routing.dynamic import (
    Update,
    coupling_coefficients,
    dynamic_routing,
    dynamic_window_routing,
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
from robustcaps.capsules.routing.self_routing import log_odds, routing_logits, self_routing
from robustcaps.capsules.routing.uniform import uniform_routing

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
    "dynamic_window_routing",
    "e_step",
    "em_routing",
    "em_steps",
    "exponential_length_logit",
    "exponential_squash",
    "exponential_squashed_length",
    "fully_connected",
    "inverted_attention_routing",
    "length_logit",
    "log_coupling",
    "log_odds",
    "m_step",
    "matrix_votes",
    "parent_logits",
    "route_votes",
    "routing_logits",
    "self_attention_routing",
    "self_routing",
    "squash",
    "squashed_length",
    "uniform_coupling",
    "uniform_routing",
    "vector_votes",
]
