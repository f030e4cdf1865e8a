"""EM routing, one iteration per launch: the M-step per window, then the E-step per group of competing slots."""

from __future__ import annotations

import triton.language as tl

from robustcaps.capsules.kernels.cuda.jit import compiled, inlined
from robustcaps.capsules.kernels.cuda.layer import TritonLayer, TritonParents, TritonTrace
from robustcaps.capsules.kernels.cuda.votes import (
    POSE,
    add_votes,
    as_tile,
    assigned,
    load_poses,
    log_sigmas,
    offsets_at,
    pair_at,
    parent_at,
    relative_votes,
    split,
    store_poses,
    up_to,
)
from robustcaps.capsules.routing import em

SUPPORT_EPS = tl.constexpr(em.SUPPORT_EPS)
SHARE_EPS = tl.constexpr(em.SHARE_EPS)
OUTLIER_EPS = tl.constexpr(em.OUTLIER_EPS)
LOG_ZERO = tl.constexpr(em.LOG_ZERO)
TINY = tl.constexpr(1e-30)
"""Lower bound of denominators, so that 0 / 0 is not NaN."""


@compiled
def add_rows(values: tl.tensor, weights: tl.tensor, totals: tl.tensor, length: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Set totals (n,) to weighted row sums of values (n, length), in an order independent of the batch size."""
    n = tl.program_id(0).to(tl.int64)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for first in range(0, length, BLOCK):
        k, live = up_to(first, length, BLOCK)
        total += tl.load(values + n * length + k, mask=live, other=0.0) * tl.load(weights + k)
    tl.store(totals + n, tl.sum(total, axis=0))


@compiled
def find_centres(
    layer: TritonLayer,
    centre: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    WINDOWS: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """Set V_0 (n, P, C, H), the votes of each window's first child."""
    k, k_live = up_to(tl.program_id(0) * WINDOWS, layer.samples * layer.parents, WINDOWS)
    n, p = split(k, layer.parents)
    c, c_live = up_to(tl.program_id(1) * TYPES, layer.types, TYPES)
    i = tl.full((WINDOWS,), 0, tl.int32)
    votes = add_votes(layer, offsets_at(layer, i), n, p, i, c, SIDE, SHARED)
    store_poses(centre, parent_at(layer, n, p, c), votes, k_live[:, None] & c_live[None, :])


@compiled
def fit_parents(
    layer: TritonLayer,
    trace: TritonTrace,
    former: tl.tensor,
    log_joints: tl.tensor,
    routed: TritonParents,
    ACTIVATION: tl.constexpr,
    MOMENTUM: tl.constexpr,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    CHILDREN: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """M-step of one iteration for a tile of parents at one position, and log a_j p_ij for the next one's E-step.

    With MOMENTUM m, mu = (1 - m) mean + m mu_(t-1); `former` is mu_(t-1), relative to the centre, and mu_0 = 0.
    """
    n, p = split(as_tile(tl.program_id(0)), layer.parents)
    c, live = up_to(tl.program_id(1) * TYPES, layer.types, TYPES)
    live = live[None, :]
    parent = parent_at(layer, n, p, c)
    centre = load_poses(trace.centre, parent)
    S, mean, scatter = moments(layer, trace, centre, n, p, c, live, SIDE, SHARED, FIRST, CHILDREN, TYPES)
    share = (1.0 / (S + SUPPORT_EPS))[:, :, None]
    gap = SUPPORT_EPS * share * (centre + mean)  # mu = sum_i r V / (S + SUPPORT_EPS) is slightly less than the mean
    mean -= gap
    if MOMENTUM > 0.0:
        step = MOMENTUM * (former_mean(former, centre, parent, FIRST) - mean)
        mean += step
        gap -= step
    variance = (scatter + S[:, :, None] * gap * gap) * share
    logits = parent_logits(layer, trace.scale, n, c, S, variance, ACTIVATION)
    store_poses(trace.mean, parent, mean, live)
    store_poses(trace.variance, parent, variance, live)
    tl.store(trace.support + parent, S, mask=live)
    tl.store(trace.logits + parent, logits, mask=live)
    if LAST:
        store_poses(routed.poses, parent, centre + mean, live)
        store_poses(routed.variance, parent, variance + layer.floor, live)
        tl.store(routed.support + parent, S, mask=live)
        tl.store(routed.logits + parent, logits, mask=live)
    else:
        prior = tl.minimum(logits, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logits))) - log_sigmas(variance, layer.floor)
        inverse = -0.5 / (variance + layer.floor)
        for first in range(0, layer.children, CHILDREN):
            i, real = up_to(first, layer.children, CHILDREN)
            d = relative_votes(layer, centre, n, p, i, c, SIDE, SHARED) - mean
            log_joint = prior + tl.sum(d * d * inverse, axis=2)
            tl.store(log_joints + pair_at(layer, n, p, i, c), log_joint, mask=real[:, None] & live)


@inlined
def moments(
    layer: TritonLayer,
    trace: TritonTrace,
    centre: tl.tensor,
    n: tl.tensor,
    p: tl.tensor,
    c: tl.tensor,
    live: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    FIRST: tl.constexpr,
    CHILDREN: tl.constexpr,
    TYPES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return S = sum_i r, the votes' mean relative to the centre, and sum_i r (V - mean)^2.

    The moments of tiles of children are merged (Chan, Golub, LeVeque 1983): as exact as two passes over the window, but
    votes are computed once.
    """
    support = tl.full((1, TYPES), 0.0, tl.float32)
    mean = tl.full((1, TYPES, POSE), 0.0, tl.float32)
    scatter = tl.full((1, TYPES, POSE), 0.0, tl.float32)
    for first in range(0, layer.children, CHILDREN):
        i, real = up_to(first, layer.children, CHILDREN)
        votes = relative_votes(layer, centre, n, p, i, c, SIDE, SHARED)
        r = assigned(layer, trace.assignments, n, p, i, c, real[:, None] & live, FIRST)
        own = tl.sum(r, axis=0, keep_dims=True)
        own_mean = tl.sum(r[:, :, None] * votes, axis=0, keep_dims=True) / tl.maximum(own, TINY)[:, :, None]
        d = votes - own_mean
        support += own
        share = (own / tl.maximum(support, TINY))[:, :, None]
        step = own_mean - mean
        scatter += tl.sum(r[:, :, None] * d * d, axis=0, keep_dims=True)
        scatter += step * step * share * (support - own)[:, :, None]
        mean += step * share
    return support, mean, scatter


@inlined
def former_mean(former: tl.tensor, centre: tl.tensor, parent: tl.tensor, FIRST: tl.constexpr) -> tl.tensor:
    """Return mu_(t-1), relative to the centre (1, C, H); mu_0 = 0."""
    return -centre if FIRST else load_poses(former, parent)


@inlined
def parent_logits(
    layer: TritonLayer,
    scale: tl.tensor,
    n: tl.tensor,
    c: tl.tensor,
    S: tl.tensor,
    variance: tl.tensor,
    ACTIVATION: tl.constexpr,
) -> tl.tensor:
    """Return z (1, C); see `routing.parent_logits`."""
    if ACTIVATION == "mixture":
        z = tl.log(S + SUPPORT_EPS) - tl.log(remaining_support(layer, n, S))
    else:
        cost = POSE * tl.load(layer.beta_u + c)[None, :] + log_sigmas(variance, layer.floor)
        if ACTIVATION == "cost":
            cost *= S
        z = tl.load(scale) * (tl.load(layer.beta_a + c)[None, :] - cost)
    return z


@inlined
def remaining_support(layer: TritonLayer, n: tl.tensor, S: tl.tensor) -> tl.tensor:
    """Return (1 + SHARE_EPS) sum_k S_k - S_j + SUPPORT_EPS; subtract first what may cancel."""
    total = tl.load(layer.total_support + n)[:, None]
    return total - S + (SHARE_EPS * total + SUPPORT_EPS)


@compiled
def normalise_assignments(
    layer: TritonLayer, R: tl.tensor, FIELD: tl.constexpr, CHILD_TYPES: tl.constexpr, TYPES: tl.constexpr
) -> None:
    """E-step at one child position: turn log a_j p_ij into R_ij = a_j p_ij / sum_k a_k p_ik.

    The sum is over all parents of a child (FIELD), or over those at one position.
    """
    n, q = split(tl.program_id(0), layer.positions)
    b, b_live = up_to(tl.program_id(1) * CHILD_TYPES, layer.child_types, CHILD_TYPES)
    c, c_live = up_to(0, layer.types, TYPES)
    live = b_live[:, None] & c_live[None, :]
    top = tl.full((CHILD_TYPES,), LOG_ZERO, tl.float32)
    evidence = tl.full((CHILD_TYPES,), 0.0, tl.float32)
    if FIELD:
        for copy in range(tl.load(layer.copies + q)):
            log_joint = tl.load(R + pairs_of_slot(layer, n, rival_at(layer, q, copy), b, c), mask=live, other=LOG_ZERO)
            higher = tl.maximum(top, tl.max(log_joint, axis=1))
            evidence = evidence * tl.exp(top - higher) + tl.sum(tl.exp(log_joint - higher[:, None]), axis=1)
            top = higher
    for copy in range(tl.load(layer.copies + q)):
        pair = pairs_of_slot(layer, n, rival_at(layer, q, copy), b, c)
        log_joint = tl.load(R + pair, mask=live, other=LOG_ZERO)
        if not FIELD:
            top = tl.max(log_joint, axis=1)
            evidence = tl.sum(tl.exp(log_joint - top[:, None]), axis=1)
        tl.store(R + pair, tl.exp(log_joint - top[:, None]) / evidence[:, None], mask=live)


@compiled
def find_largest(
    log_joints: tl.tensor,
    largest: tl.tensor,
    slots: tl.tensor,
    pairs: tl.tensor,
    SLOTS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Set `largest` (n, B*C) to the maximum of log a_j p_ij (n, P*S, B*C) over the slots of all windows."""
    n = tl.program_id(0).to(tl.int64)
    k, live = up_to(tl.program_id(1) * PAIRS, pairs, PAIRS)
    top = tl.full((PAIRS,), LOG_ZERO, tl.float32)
    for first in range(0, slots, SLOTS):
        slot, _ = up_to(first, slots, SLOTS)
        top = tl.maximum(top, tl.max(tl.load(log_joints + (n * slots + slot)[:, None] * pairs + k[None, :]), axis=0))
    tl.store(largest + n * pairs + k, top, mask=live)


@compiled
def normalise_by_type(
    layer: TritonLayer, R: tl.tensor, largest: tl.tensor, CHILD_TYPES: tl.constexpr, TYPES: tl.constexpr
) -> None:
    """E-step of the competition `type` in one group: R_ij = a_j p_ij / (sum_k a_k p_ik + OUTLIER_EPS max).

    The sum is over the parents k of the type of j, one for each slot of the group; max is that of `find_largest`.
    """
    n, g = split(tl.program_id(0), layer.groups)
    b, b_live = up_to(tl.program_id(1) * CHILD_TYPES, layer.child_types, CHILD_TYPES)
    c, c_live = up_to(0, layer.types, TYPES)
    live = b_live[:, None] & c_live[None, :]
    top = tl.load(largest + (n * layer.child_types + b)[:, None] * layer.types + c[None, :])
    evidence = tl.full((CHILD_TYPES, TYPES), OUTLIER_EPS, tl.float32)
    for copy in range(tl.load(layer.copies + g)):
        pair = pairs_of_slot(layer, n, rival_at(layer, g, copy), b, c)
        evidence += tl.exp(tl.load(R + pair, mask=live, other=LOG_ZERO) - top)
    for copy in range(tl.load(layer.copies + g)):
        pair = pairs_of_slot(layer, n, rival_at(layer, g, copy), b, c)
        tl.store(R + pair, tl.exp(tl.load(R + pair, mask=live, other=LOG_ZERO) - top) / evidence, mask=live)


@inlined
def rival_at(layer: TritonLayer, g: tl.tensor, copy: tl.tensor) -> tl.tensor:
    """Return a slot of a group."""
    return tl.load(layer.rivals + g * layer.max_copies + copy)


@inlined
def pairs_of_slot(layer: TritonLayer, n: tl.tensor, slot: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Return the indices of the children of types b in a slot, in (n, P, I, C): (B, C)."""
    slot = n * (layer.parents * layer.slots) + slot
    return (slot * layer.child_types + b)[:, None] * layer.types + c[None, :]
