"""EM routing of whole samples, one window and one block of 16 parents at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

from robustcaps.capsules.kernels.cpu.jit import compiled, inlined
from robustcaps.capsules.kernels.cpu.lanes import LANES, Lanes, exp, fma, largest, load, splat, store, total
from robustcaps.capsules.kernels.cpu.votes import (
    MEAN_COST,
    MIXTURE,
    POSE,
    Floats,
    Layer,
    Trace,
    Window,
    assignments,
    by_slot,
    count_rivals,
    half_log_volume,
    inverse_variance,
    open_window,
    store_four,
)
from robustcaps.capsules.routing.em import EMPTY, NOWHERE, WHOLE


class Parents(NamedTuple):
    """The routed parents, laid out as in `Routed`."""

    poses: Floats
    """mu (n, P, C, H)."""
    logits: Floats
    """(n, P, C)."""
    variance: Floats
    """sigma^2 (n, P, C, H), the floor included."""
    support: Floats
    """(n, P, C)."""


@compiled
def route_samples(layer: Layer, trace: Trace, parents: Parents, window: Window, first: int, last: int) -> None:
    """Route samples first..last-1. The trace has a row for each sample, or a single one that is overwritten."""
    positions, _, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    for n in range(first, last):
        row = min(n, len(trace.mean) - 1)
        for t in range(iterations):
            R = assignments(layer, trace, row, t)
            for p in range(positions):
                for k in range(blocks):
                    open_window(layer, R, n, p, k, window)
                    fit_parents(trace, window, row, t, p, k)
                    activate(layer, trace, n, row, t, p, k)
                    if t + 1 < iterations:
                        write_prior(layer, trace, window, row, t, p, k)
                        log_joint(layer, trace, window, row, t, p, k)
                    else:
                        write_parents(layer, trace, window, parents, n, row, p, k)
            if t + 1 < iterations:
                share_out(layer, trace.assignments[row, t])


@inlined
def fit_parents(trace: Trace, window: Window, row: int, t: int, p: int, k: int) -> None:
    """M-step: mean, variance and support of one block of parents; the variance in a second pass."""
    support = splat(0.0)
    for i in range(len(window.r)):
        support += load(window.r, (i,))
    store(trace.support, (row, t, p, k), support)
    share = splat(1.0) / (support + splat(EMPTY))
    for h in range(0, POSE, 4):
        fit_components(window, share, trace.mean[row, t, p, k], trace.variance[row, t, p, k], h)


@inlined
def fit_components(window: Window, share: Lanes, mean: Floats, variance: Floats, h: int) -> None:
    """Set mean and variance of components h..h+3: four at a time stay in registers, and their votes in the cache."""
    m0, m1, m2, m3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for i in range(len(window.r)):
        r = load(window.r, (i,))
        m0, m1 = fma(r, load(window.votes, (i, h)), m0), fma(r, load(window.votes, (i, h + 1)), m1)
        m2, m3 = fma(r, load(window.votes, (i, h + 2)), m2), fma(r, load(window.votes, (i, h + 3)), m3)
    pull = splat(EMPTY) * share  # (sum_i r V_i) / (S + EMPTY) - V_0
    m0, m1 = m0 * share - pull * load(window.centre, (h,)), m1 * share - pull * load(window.centre, (h + 1,))
    m2, m3 = m2 * share - pull * load(window.centre, (h + 2,)), m3 * share - pull * load(window.centre, (h + 3,))
    v0, v1, v2, v3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for i in range(len(window.r)):
        r = load(window.r, (i,))
        d0, d1 = load(window.votes, (i, h)) - m0, load(window.votes, (i, h + 1)) - m1
        d2, d3 = load(window.votes, (i, h + 2)) - m2, load(window.votes, (i, h + 3)) - m3
        v0, v1, v2, v3 = fma(r * d0, d0, v0), fma(r * d1, d1, v1), fma(r * d2, d2, v2), fma(r * d3, d3, v3)
    store_four(mean, h, (m0, m1, m2, m3))
    store_four(variance, h, (v0 * share, v1 * share, v2 * share, v3 * share))


@inlined
def activate(layer: Layer, trace: Trace, n: int, row: int, t: int, p: int, k: int) -> None:
    """Set the logits of one block of parents, as `routing.parent_logits` does."""
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        c = k * LANES + lane
        support = trace.support[row, t, p, k, lane]
        if layer.rule == MIXTURE:
            rest = (1.0 + WHOLE) * layer.totals[n] - support
            trace.logits[row, t, p, k, lane] = math.log(support + EMPTY) - math.log(rest + EMPTY)
        else:
            weight = 1.0 if layer.rule == MEAN_COST else support
            cost = weight * (POSE * layer.beta_u[c] + half_log_volume(trace.variance[row, t, p, k], lane, layer.floor))
            trace.logits[row, t, p, k, lane] = layer.scales[t] * (layer.beta_a[c] - cost)


@inlined
def write_prior(layer: Layer, trace: Trace, window: Window, row: int, t: int, p: int, k: int) -> None:
    """Set log a_j - sum_h log sigma_j^h: all of log a_j p_ij that is the same for all children."""
    for lane in range(LANES):
        if k * LANES + lane < len(layer.beta_a):
            z = float(trace.logits[row, t, p, k, lane])
            log_activation = min(z, 0.0) - math.log1p(math.exp(-abs(z)))
            window.prior[lane] = log_activation - half_log_volume(trace.variance[row, t, p, k], lane, layer.floor)
        else:
            window.prior[lane] = NOWHERE


@inlined
def log_joint(layer: Layer, trace: Trace, window: Window, row: int, t: int, p: int, k: int) -> None:
    """Set log a_j p_ij, up to a constant, where the assignments of iteration t+1 will be."""
    mean, variance = trace.mean[row, t, p, k], trace.variance[row, t, p, k]
    for h in range(POSE):
        store(window.inverse, (h,), splat(-0.5) * inverse_variance(variance, h, layer.floor))
    for i in range(len(window.r)):
        log_p = load(window.prior, ())
        for h in range(POSE):
            d = load(window.votes, (i, h)) - load(mean, (h,))
            log_p = fma(d * d, load(window.inverse, (h,)), log_p)
        store(trace.assignments, (row, t, p, i, k), log_p)


@inlined
def share_out(layer: Layer, R: Floats) -> None:
    """E-step: turn log a_j p_ij into R_ij = a_j p_ij / sum_k a_k p_ik over the parents k that compete for child i."""
    R_slots = by_slot(layer, R)
    for group in layer.groups:
        rivals = group[: count_rivals(layer, group)]
        for b in range(R_slots.shape[1]):
            top = -math.inf
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    top = max(top, largest(load(R_slots, (slot, b, k))))
            evidence = splat(0.0)
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    joint = exp(load(R_slots, (slot, b, k)) - splat(top))
                    store(R_slots, (slot, b, k), joint)
                    evidence += joint
            share = splat(1.0 / total(evidence))
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    store(R_slots, (slot, b, k), load(R_slots, (slot, b, k)) * share)


@inlined
def write_parents(
    layer: Layer, trace: Trace, window: Window, parents: Parents, n: int, row: int, p: int, k: int
) -> None:
    """Copy one block of parents, as the last iteration left them, to the result."""
    t = len(layer.scales) - 1
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        c = k * LANES + lane
        for h in range(POSE):
            parents.poses[n, p, c, h] = window.centre[h, lane] + trace.mean[row, t, p, k, h, lane]
            parents.variance[n, p, c, h] = trace.variance[row, t, p, k, h, lane] + layer.floor
        parents.logits[n, p, c] = trace.logits[row, t, p, k, lane]
        parents.support[n, p, c] = trace.support[row, t, p, k, lane]
