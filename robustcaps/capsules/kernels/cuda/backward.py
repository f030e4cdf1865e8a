"""Hand-derived gradients of EM routing, one iteration per launch; the last pass is in `contraction`.

Symbols: g_x is the gradient of the loss by x; d = V - mu; S = sum_i r + SUPPORT_EPS; var excludes the floor, which
sigma^2 includes; mean is the weighted mean of the votes, which mu is without momentum.
"""

from __future__ import annotations

import triton.language as tl

from robustcaps.capsules.kernels.cuda.forward import (
    SHARE_EPS,
    SUPPORT_EPS,
    former_mean,
    pairs_of_slot,
    remaining_support,
    rival_at,
)
from robustcaps.capsules.kernels.cuda.jit import compiled, inlined
from robustcaps.capsules.kernels.cuda.layer import TritonGradients, TritonLayer, TritonParents, TritonTrace
from robustcaps.capsules.kernels.cuda.votes import (
    POSE,
    as_tile,
    load_poses,
    log_sigmas,
    pair_at,
    parent_at,
    relative_votes,
    split,
    store_poses,
    up_to,
)


@compiled
def backward_parents(
    layer: TritonLayer,
    trace: TritonTrace,
    former: tl.tensor,
    upstream: TritonParents,
    later: TritonGradients,
    grads: TritonGradients,
    ACTIVATION: tl.constexpr,
    MOMENTUM: tl.constexpr,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    CHILDREN: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """Propagate the gradients of a tile of parents at one position to g_r; keep their g_mean and g_var for the votes.

    The gradients by the parents come from the loss (LAST), or from g_L and, with MOMENTUM m, g_mu of the `later`
    iteration. mu = (1 - m) mean + m mu_(t-1), so that g_mean = (1 - m) g_mu and the former iteration gets m g_mu.
    """
    n, p = split(as_tile(tl.program_id(0)), layer.parents)
    c, live = up_to(tl.program_id(1) * TYPES, layer.types, TYPES)
    live = live[None, :]
    parent = parent_at(layer, n, p, c)
    centre, mean = load_poses(trace.centre, parent), load_poses(trace.mean, parent)
    variance = load_poses(trace.variance, parent)
    S = tl.load(trace.support + parent)
    if LAST:
        g_mean, g_variance = load_poses(upstream.poses, parent), load_poses(upstream.variance, parent)
        g_S, g_z = tl.load(upstream.support + parent), tl.load(upstream.logits + parent)
    else:
        g_mean, g_variance, g_prior = backward_log_joints(
            layer, later.assignments, centre, mean, variance, n, p, c, live, SIDE, SHARED, CHILDREN, TYPES
        )
        if MOMENTUM > 0.0:
            g_mean += MOMENTUM / (1.0 - MOMENTUM) * load_poses(later.mean, parent)
        g_S = tl.full(S.shape, 0.0, tl.float32)
        g_z = g_prior / (1.0 + tl.exp(tl.load(trace.logits + parent)))
    if ACTIVATION == "mixture":
        rest = remaining_support(layer, n, S)
        add_to(grads.total_support + parent, -(1.0 + SHARE_EPS) * g_z / rest, live)
        g_S += g_z * (1.0 / (S + SUPPORT_EPS) + 1.0 / rest)
    else:
        g_z *= tl.load(trace.scale)
        add_to(grads.beta_a + parent, g_z, live)
        if ACTIVATION == "cost":
            g_S -= g_z * (POSE * tl.load(layer.beta_u + c)[None, :] + log_sigmas(variance, layer.floor))
            g_z *= S
        add_to(grads.beta_u + parent, -POSE * g_z, live)
        g_variance -= 0.5 * g_z[:, :, None] / (variance + layer.floor)
    share = 1.0 / (S + SUPPORT_EPS)
    g_mean -= 2.0 * SUPPORT_EPS * share[:, :, None] * (centre + mean) * g_variance  # d var / d mu: not 0 if S is tiny
    level = g_S - share * tl.sum(g_variance * variance, axis=2)
    if MOMENTUM > 0.0:
        gap = MOMENTUM / (1.0 - MOMENTUM) * (mean - former_mean(former, centre, parent, FIRST))  # weighted mean - mu
        g_mean = (1.0 - MOMENTUM) * (g_mean - 2.0 * gap * g_variance)
        level -= share * tl.sum(g_mean * gap, axis=2)
    store_poses(grads.mean, parent, g_mean, live)
    store_poses(grads.variance, parent, g_variance, live)
    for first in range(0, layer.children, CHILDREN):  # g_r = g_S + sum_h (g_mean (d - gap) + g_var (d^2 - var)) / S
        i, real = up_to(first, layer.children, CHILDREN)
        d = relative_votes(layer, centre, n, p, i, c, SIDE, SHARED) - mean
        g_r = level + share * tl.sum((g_mean + g_variance * d) * d, axis=2)
        tl.store(grads.assignments + pair_at(layer, n, p, i, c), g_r, mask=real[:, None] & live)


@inlined
def backward_log_joints(
    layer: TritonLayer,
    g_log_joints: tl.tensor,
    centre: tl.tensor,
    mean: tl.tensor,
    variance: tl.tensor,
    n: tl.tensor,
    p: tl.tensor,
    c: tl.tensor,
    live: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    CHILDREN: tl.constexpr,
    TYPES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """E-step: return sum_i g_L d/sigma^2, sum_i g_L (d^2/sigma^2 - 1) / (2 sigma^2), and sum_i g_L."""
    g_mean = tl.full((1, TYPES, POSE), 0.0, tl.float32)
    g_variance = tl.full((1, TYPES, POSE), 0.0, tl.float32)
    g_prior = tl.full((1, TYPES), 0.0, tl.float32)
    for first in range(0, layer.children, CHILDREN):
        i, real = up_to(first, layer.children, CHILDREN)
        d = relative_votes(layer, centre, n, p, i, c, SIDE, SHARED) - mean
        g_L = tl.load(g_log_joints + pair_at(layer, n, p, i, c), mask=real[:, None] & live, other=0.0)
        grad = g_L[:, :, None] * d
        g_prior += tl.sum(g_L, axis=0, keep_dims=True)
        g_mean += tl.sum(grad, axis=0, keep_dims=True)
        g_variance += tl.sum(grad * d, axis=0, keep_dims=True)
    inverse = 1.0 / (variance + layer.floor)
    return g_mean * inverse, 0.5 * inverse * (g_variance * inverse - g_prior[:, :, None]), g_prior


@inlined
def add_to(place: tl.tensor, x: tl.tensor, live: tl.tensor) -> None:
    """Add to values that no other program accesses."""
    tl.store(place, tl.load(place) + x, mask=live)


@compiled
def backward_assignments(
    layer: TritonLayer,
    R: tl.tensor,
    g_r: tl.tensor,
    g_activations: tl.tensor,
    FIELD: tl.constexpr,
    CHILD_TYPES: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """At one child position: through r = R a, g_a = sum_j g_r R; through the softmax R, g_L = R (g_R - sum_j g_R R).

    g_L replaces g_r; g_a is added to that of later iterations.
    """
    n, q = split(tl.program_id(0), layer.positions)
    b, b_live = up_to(tl.program_id(1) * CHILD_TYPES, layer.child_types, CHILD_TYPES)
    c, c_live = up_to(0, layer.types, TYPES)
    live = b_live[:, None] & c_live[None, :]
    child = (n * layer.positions + q) * layer.child_types + b
    a = tl.load(layer.activations + child)[:, None]
    g_a = tl.full((CHILD_TYPES,), 0.0, tl.float32)
    for copy in range(tl.load(layer.copies + q)):
        pair = pairs_of_slot(layer, n, rival_at(layer, q, copy), b, c)
        share, g_R = tl.load(R + pair, mask=live, other=0.0), tl.load(g_r + pair, mask=live, other=0.0)
        own = tl.sum(g_R * share, axis=1)
        g_a += own
        if not FIELD:
            tl.store(g_r + pair, share * a * (g_R - own[:, None]), mask=live)
    if FIELD:
        for copy in range(tl.load(layer.copies + q)):
            pair = pairs_of_slot(layer, n, rival_at(layer, q, copy), b, c)
            share, g_R = tl.load(R + pair, mask=live, other=0.0), tl.load(g_r + pair, mask=live, other=0.0)
            tl.store(g_r + pair, share * a * (g_R - g_a[:, None]), mask=live)
    add_to(g_activations + child, g_a, b_live)


@compiled
def backward_activations(
    layer: TritonLayer,
    R: tl.tensor,
    g_r: tl.tensor,
    g_activations: tl.tensor,
    FIRST: tl.constexpr,
    CHILD_TYPES: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """At one child position: through r = R a, add g_a = sum_j g_r R to that of later iterations."""
    n, q = split(tl.program_id(0), layer.positions)
    b, b_live = up_to(tl.program_id(1) * CHILD_TYPES, layer.child_types, CHILD_TYPES)
    c, c_live = up_to(0, layer.types, TYPES)
    live = b_live[:, None] & c_live[None, :]
    g_a = tl.full((CHILD_TYPES,), 0.0, tl.float32)
    for copy in range(tl.load(layer.child_copies + q)):
        slot = tl.load(layer.child_slots + q * layer.max_child_copies + copy)
        pair = pairs_of_slot(layer, n, slot, b, c)
        share = tl.load(layer.uniform + slot) if FIRST else tl.load(R + pair, mask=live, other=0.0)
        g_a += tl.sum(tl.load(g_r + pair, mask=live, other=0.0) * share, axis=1)
    add_to(g_activations + (n * layer.positions + q) * layer.child_types + b, g_a, b_live)


@compiled
def backward_by_type(
    layer: TritonLayer, R: tl.tensor, g_r: tl.tensor, CHILD_TYPES: tl.constexpr, TYPES: tl.constexpr
) -> None:
    """In one group of the competition `type`: through the softmax over its slots, g_L = R (g_R - sum g_R R).

    g_L replaces g_r = g_R / a; the slots of a group may belong to different children, each with its own activation.
    """
    n, g = split(tl.program_id(0), layer.groups)
    b, b_live = up_to(tl.program_id(1) * CHILD_TYPES, layer.child_types, CHILD_TYPES)
    c, c_live = up_to(0, layer.types, TYPES)
    live = b_live[:, None] & c_live[None, :]
    sums = tl.full((CHILD_TYPES, TYPES), 0.0, tl.float32)
    for copy in range(tl.load(layer.copies + g)):
        slot = rival_at(layer, g, copy)
        pair = pairs_of_slot(layer, n, slot, b, c)
        g_R = tl.load(g_r + pair, mask=live, other=0.0) * activations_in(layer, n, slot, b)
        sums += g_R * tl.load(R + pair, mask=live, other=0.0)
    for copy in range(tl.load(layer.copies + g)):
        slot = rival_at(layer, g, copy)
        pair = pairs_of_slot(layer, n, slot, b, c)
        g_R = tl.load(g_r + pair, mask=live, other=0.0) * activations_in(layer, n, slot, b)
        tl.store(g_r + pair, tl.load(R + pair, mask=live, other=0.0) * (g_R - sums), mask=live)


@inlined
def activations_in(layer: TritonLayer, n: tl.tensor, slot: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Return the activations of the children of types b in a slot, (B, 1)."""
    child = (n * layer.positions + tl.load(layer.windows + slot)) * layer.child_types + b
    return tl.load(layer.activations + child)[:, None]
