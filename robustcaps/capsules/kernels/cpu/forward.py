"""The forward kernel: EM routing of samples, one window and one block of 16 parents at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

from robustcaps.capsules.kernels.cpu.jit import compiled, inlined
from robustcaps.capsules.kernels.cpu.lanes import (
    LANES,
    LN2,
    Lanes,
    exp,
    fma,
    largest,
    load,
    maximum,
    softplus,
    splat,
    store,
    total,
)
from robustcaps.capsules.kernels.cpu.votes import (
    MEAN_COST,
    MIXTURE,
    POSE,
    Floats,
    NumbaLayer,
    NumbaTrace,
    count_rivals,
    half_log_volume,
    inverse_variance,
    offset,
    set_volumes,
    slot_shape,
    slots_share,
)
from robustcaps.capsules.routing.em import LOG_ZERO, OUTLIER_EPS, SHARE_EPS, SUPPORT_EPS


class NumbaParents(NamedTuple):
    """The routed parents, laid out as in `Routed`."""

    poses: Floats
    """mu (n, P, C, H)."""
    logits: Floats
    """(n, P, C)."""
    variance: Floats
    """sigma^2 (n, P, C, H), the floor included."""
    support: Floats
    """(n, P, C)."""


class ForwardScratch(NamedTuple):
    """Buffers of one window of children and one block of parents; overwritten by the next."""

    poses: Floats
    """M_i of the children in the window (I, H)."""
    r: Floats
    """r_ij = R_ij a_i (I, 16 lanes)."""
    centre: Floats
    """V_0, the first child's votes (H, 16 lanes)."""
    pair: Floats
    """V_i - V_0 of two components, then (V_i - mu)^2 (I, 2, 16 lanes).

    V_i - V_0 is near 0 if votes agree, so that no precision is lost if they agree far from 0.
    """
    volumes: Floats
    """sum_h log (sigma_j^h)^2 of the parents, as `set_volumes` stores it (2, 16 lanes)."""
    prior: Floats
    """log a_j - sum_h log sigma_j^h of the parents (16 lanes)."""


@compiled
def route_samples(
    layer: NumbaLayer, trace: NumbaTrace, parents: NumbaParents, scratch: ForwardScratch, first: int, last: int
) -> None:
    """Route samples first..last-1. The trace has one row per sample, or a single row that is overwritten."""
    positions, _, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    for n in range(first, last):
        row = min(n, len(trace.mean) - 1)
        for t in range(iterations):
            R = layer.uniform if t == 0 else trace.assignments[row, t - 1]
            for p in range(positions):
                gather_poses(layer, scratch, n, p)
                for k in range(blocks):
                    share = set_weights(layer, trace, scratch, R, (n, row, t, p, k))
                    for z in range(4):
                        for h in (z, z + 8):
                            fit_pair(layer, trace, scratch, share, (row, t, p, k), h)
                            if t + 1 < iterations:
                                add_distances(layer, trace, scratch, (row, t, p, k), h)
                    activate(layer, trace, scratch, n, row, t, p, k)
                    if t + 1 < iterations:
                        add_prior(layer, trace, scratch, row, t, p, k)
                    else:
                        write_parents(layer, trace, scratch, parents, n, row, p, k)
            if t + 1 < iterations:
                normalise_assignments(layer, trace.assignments[row, t])


@inlined
def gather_poses(layer: NumbaLayer, scratch: ForwardScratch, n: int, p: int) -> None:
    """Copy the poses of a window's children to contiguous memory."""
    slots, child_types = layer.windows.shape[1], layer.poses.shape[2]
    for s in range(slots):
        for b in range(child_types):
            store(scratch.poses, (s * child_types + b,), load(layer.poses, (n, layer.windows[p, s], b)))


@inlined
def set_weights(
    layer: NumbaLayer, trace: NumbaTrace, scratch: ForwardScratch, R: Floats, place: tuple[int, int, int, int, int]
) -> Lanes:
    """Set r_ij and the support S of one block of parents; return 1 / S."""
    n, row, t, p, k = place
    slots, child_types = layer.windows.shape[1], layer.poses.shape[2]
    support = splat(0.0)
    for s in range(slots):
        q = layer.windows[p, s]
        for b in range(child_types):
            i = s * child_types + b
            r = load(R, (p, i, k)) * splat(layer.activations[n, q, b])
            store(scratch.r, (i,), r)
            support += r
    store(trace.support, (row, t, p, k), support)
    return splat(1.0) / (support + splat(SUPPORT_EPS))


@inlined
def fit_pair(
    layer: NumbaLayer,
    trace: NumbaTrace,
    scratch: ForwardScratch,
    share: Lanes,
    place: tuple[int, int, int, int],
    h: int,
) -> None:
    """M-step: mean and variance of components h and h+4; the variance in a second pass.

    Two components of all votes stay in the cache, and their sums in registers.
    """
    row, t, p, k = place
    m0, m1 = form_pair(layer, scratch, k, h)
    shrinkage = splat(SUPPORT_EPS) * share  # (sum_i r V_i) / (S + SUPPORT_EPS) - V_0
    m0, m1 = (
        m0 * share - shrinkage * load(scratch.centre, (h,)),
        m1 * share - shrinkage * load(scratch.centre, (h + 4,)),
    )
    if layer.momentum > 0.0:
        m0 = keep_former(layer, trace, scratch, m0, place, h)
        m1 = keep_former(layer, trace, scratch, m1, place, h + 4)
    v0, v1 = splat(0.0), splat(0.0)
    keep_squares = t + 1 < len(layer.scales)  # for the E-step
    for i in range(len(scratch.r)):
        r = load(scratch.r, (i,))
        d0, d1 = load(scratch.pair, (i, 0)) - m0, load(scratch.pair, (i, 1)) - m1
        d0, d1 = d0 * d0, d1 * d1
        if keep_squares:
            store(scratch.pair, (i, 0), d0)
            store(scratch.pair, (i, 1), d1)
        v0, v1 = fma(r, d0, v0), fma(r, d1, v1)
    store(trace.mean, (row, t, p, k, h), m0)
    store(trace.mean, (row, t, p, k, h + 4), m1)
    store(trace.variance, (row, t, p, k, h), v0 * share)
    store(trace.variance, (row, t, p, k, h + 4), v1 * share)


@inlined
def keep_former(
    layer: NumbaLayer, trace: NumbaTrace, scratch: ForwardScratch, mean: Lanes, place: tuple[int, int, int, int], h: int
) -> Lanes:
    """Return (1 - m) mean + m mu_(t-1) of one component, relative to V_0; mu_0 = 0."""
    row, t, p, k = place
    former = splat(0.0) - load(scratch.centre, (h,)) if t == 0 else load(trace.mean, (row, t - 1, p, k, h))
    return fma(splat(layer.momentum), former - mean, mean)


@inlined
def form_pair(layer: NumbaLayer, scratch: ForwardScratch, k: int, h: int) -> tuple[Lanes, Lanes]:
    """Set components h and h+4 of V_0 and of all V_i - V_0, and return their sum_i r_ij (V_ij - V_0j).

    Children form a single run if each has its own transforms and all the same offset, else one run per slot.
    """
    shared = slots_share(layer)
    runs = layer.windows.shape[1] if shared or len(layer.offsets) > 1 else 1
    length = len(scratch.r) // runs
    c0, c1 = transform_pair(layer, scratch, (0, 0, k, h), offset(layer, 0, h), offset(layer, 0, h + 4))
    store(scratch.centre, (h,), c0)
    store(scratch.centre, (h + 4,), c1)
    m0, m1 = splat(0.0), splat(0.0)
    for run in range(runs):
        s0, s1 = offset(layer, run, h) - c0, offset(layer, run, h + 4) - c1
        for j in range(length):
            i = run * length + j
            v0, v1 = transform_pair(layer, scratch, (i, j if shared else i, k, h), s0, s1)
            store(scratch.pair, (i, 0), v0)
            store(scratch.pair, (i, 1), v1)
            r = load(scratch.r, (i,))
            m0, m1 = fma(r, v0, m0), fma(r, v1, m1)
    return m0, m1


@inlined
def transform_pair(
    layer: NumbaLayer, scratch: ForwardScratch, place: tuple[int, int, int, int], v0: Lanes, v1: Lanes
) -> tuple[Lanes, Lanes]:
    """Return v0 and v1 plus components h and h+4 of the votes of child i, whose transforms are those of child w."""
    i, w, k, h = place
    if len(layer.vectors) > 0:
        for y in range(POSE):
            m = splat(scratch.poses[i, y])
            v0 = fma(m, load(layer.transforms, (h, w, k, y)), v0)
            v1 = fma(m, load(layer.transforms, (h + 4, w, k, y)), v1)
    else:
        z = h % 4
        x = h - z
        for y in range(4):
            number = load(layer.transforms, (z, w, k, y))
            v0 = fma(splat(scratch.poses[i, x + y]), number, v0)
            v1 = fma(splat(scratch.poses[i, x + 4 + y]), number, v1)
    return v0, v1


@inlined
def add_distances(
    layer: NumbaLayer, trace: NumbaTrace, scratch: ForwardScratch, place: tuple[int, int, int, int], h: int
) -> None:
    """Add -(V_ij - mu_j)^2 / (2 sigma_j^2) of components h and h+4 to the later assignments of iteration t+1."""
    row, t, p, k = place
    f0 = splat(-0.5) * inverse_variance(trace.variance[row, t, p, k], h, layer.floor)
    f1 = splat(-0.5) * inverse_variance(trace.variance[row, t, p, k], h + 4, layer.floor)
    for i in range(len(scratch.r)):
        log_p = splat(0.0) if h == 0 else load(trace.assignments, (row, t, p, i, k))
        log_p = fma(load(scratch.pair, (i, 1)), f1, fma(load(scratch.pair, (i, 0)), f0, log_p))
        store(trace.assignments, (row, t, p, i, k), log_p)


@inlined
def activate(
    layer: NumbaLayer, trace: NumbaTrace, scratch: ForwardScratch, n: int, row: int, t: int, p: int, k: int
) -> None:
    """Set the logits of one block of parents as `routing.parent_logits`, and their log volumes."""
    set_volumes(scratch.volumes, trace.variance[row, t, p, k], layer.floor)
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        c = k * LANES + lane
        support = trace.support[row, t, p, k, lane]
        if layer.rule == MIXTURE:
            rest = (1.0 + SHARE_EPS) * layer.totals[n] - support
            trace.logits[row, t, p, k, lane] = math.log(support + SUPPORT_EPS) - math.log(rest + SUPPORT_EPS)
        else:
            weight = 1.0 if layer.rule == MEAN_COST else support
            cost = weight * (POSE * layer.beta_u[c] + half_log_volume(scratch.volumes, lane))
            trace.logits[row, t, p, k, lane] = layer.scales[t] * (layer.beta_a[c] - cost)


@inlined
def add_prior(layer: NumbaLayer, trace: NumbaTrace, scratch: ForwardScratch, row: int, t: int, p: int, k: int) -> None:
    """Add log a_j - sum_h log sigma_j^h to all log p_ij; empty lanes become `LOG_ZERO`."""
    z, zero = load(trace.logits, (row, t, p, k)), splat(0.0)
    log_volume = splat(0.5) * fma(load(scratch.volumes, (0,)), splat(LN2), load(scratch.volumes, (1,)))
    log_a = zero - maximum(zero, zero - z) - softplus(zero - maximum(z, zero - z))
    store(scratch.prior, (), log_a - log_volume)
    for lane in range(len(layer.beta_a) - k * LANES, LANES):
        scratch.prior[lane] = LOG_ZERO
    prior = load(scratch.prior, ())
    for i in range(len(scratch.r)):
        store(trace.assignments, (row, t, p, i, k), load(trace.assignments, (row, t, p, i, k)) + prior)


@inlined
def normalise_assignments(layer: NumbaLayer, R: Floats) -> None:
    """E-step: turn log a_j p_ij into R_ij."""
    if layer.by_type:
        normalise_by_type(layer, R)
    else:
        normalise_by_group(layer, R)


@inlined
def normalise_by_group(layer: NumbaLayer, R: Floats) -> None:
    """E-step: R_ij = a_j p_ij / sum_k a_k p_ik over the parents k that compete for child i."""
    R_slots = R.reshape(slot_shape(layer, R))
    for group in layer.groups:
        rivals = group[: count_rivals(layer, group)]
        for b in range(R_slots.shape[1]):
            tops = splat(-math.inf)
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    tops = maximum(load(R_slots, (slot, b, k)), tops)
            top, evidence = splat(largest(tops)), splat(0.0)
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    joint = exp(load(R_slots, (slot, b, k)) - top)
                    store(R_slots, (slot, b, k), joint)
                    evidence += joint
            share = splat(1.0 / total(evidence))
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    store(R_slots, (slot, b, k), load(R_slots, (slot, b, k)) * share)


@inlined
def normalise_by_type(layer: NumbaLayer, R: Floats) -> None:
    """E-step of the competition `type`: R_ij = a_j p_ij / (sum_k a_k p_ik + OUTLIER_EPS max), k and j of one type."""
    R_slots = R.reshape(slot_shape(layer, R))
    for b in range(R_slots.shape[1]):
        for k in range(R_slots.shape[2]):
            top = splat(0.1 * LOG_ZERO)  # above the empty lanes, which become 0
            for slot in range(len(R_slots)):
                top = maximum(load(R_slots, (slot, b, k)), top)
            for group in layer.groups:
                rivals = group[: count_rivals(layer, group)]
                evidence = splat(OUTLIER_EPS)
                for slot in rivals:
                    joint = exp(load(R_slots, (slot, b, k)) - top)
                    store(R_slots, (slot, b, k), joint)
                    evidence += joint
                share = splat(1.0) / evidence
                for slot in rivals:
                    store(R_slots, (slot, b, k), load(R_slots, (slot, b, k)) * share)


@inlined
def write_parents(
    layer: NumbaLayer,
    trace: NumbaTrace,
    scratch: ForwardScratch,
    parents: NumbaParents,
    n: int,
    row: int,
    p: int,
    k: int,
) -> None:
    """Copy one block of parents of the last iteration to the result."""
    t = len(layer.scales) - 1
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        c = k * LANES + lane
        for h in range(POSE):
            parents.poses[n, p, c, h] = scratch.centre[h, lane] + trace.mean[row, t, p, k, h, lane]
            parents.variance[n, p, c, h] = trace.variance[row, t, p, k, h, lane] + layer.floor
        parents.logits[n, p, c] = trace.logits[row, t, p, k, lane]
        parents.support[n, p, c] = trace.support[row, t, p, k, lane]
