"""The gradient of EM routing, derived by hand; votes are formed again from poses and transforms.

Symbols: g_x is the gradient of the loss by x; d = V - mu; S = sum_i r + EMPTY; var has no floor, sigma^2 does.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from robustcaps.capsules.kernels.forward import Parents
from robustcaps.capsules.kernels.jit import compiled, inlined
from robustcaps.capsules.kernels.lanes import LANES, fma, load, splat, store, total
from robustcaps.capsules.kernels.votes import (
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
)
from robustcaps.capsules.routing.em import EMPTY


class Gradients(NamedTuple):
    """Where gradients are added up; all start at 0."""

    poses: Floats
    """(n, Q, B, H)."""
    activations: Floats
    """(n, Q, B)."""
    transforms: Floats
    """(S or 1, B, K, H, 16 lanes), or of length 0 where nobody asks for it."""
    beta_a: Floats
    """(C,)."""
    beta_u: Floats
    """(C,)."""


class Pulls(NamedTuple):
    """The gradients of what routing computes in one sample; overwritten by the next."""

    assignments: Floats
    """g_r of each iteration, then g_L of the log a_j p_ij that its R came from (T, P, I, K, 16 lanes)."""
    mean: Floats
    """g_mu (T, P, K, H, 16 lanes)."""
    variance: Floats
    """g_var (T, P, K, H, 16 lanes)."""
    support: Floats
    """g_S of the block at hand (16 lanes)."""
    logits: Floats
    """g_z of the block at hand (16 lanes)."""
    votes: Floats
    """g_V of the child at hand (H, 16 lanes)."""
    weights: Floats
    """r/S of the child at hand (T, 16 lanes)."""
    inverse: Floats
    """1 / sigma^2 of the block at hand (T, H, 16 lanes)."""


@compiled
def pull_back_samples(
    layer: Layer,
    trace: Trace,
    upstream: Parents,
    window: Window,
    pulls: Pulls,
    gradients: Gradients,
    first: int,
    last: int,
) -> None:
    """Add the gradients of samples first..last-1, from those of their parents."""
    positions, _, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    for n in range(first, last):
        row = n - first
        for t in range(iterations - 1, -1, -1):
            R = assignments(layer, trace, row, t)
            for p in range(positions):
                for k in range(blocks):
                    open_window(layer, R, n, p, k, window)
                    if t == iterations - 1:
                        take_upstream(upstream, pulls, n, t, p, k)
                    else:
                        pull_back_log_joint(layer, trace, window, pulls, row, t, p, k)
                    pull_back_logits(layer, trace, pulls, gradients, row, t, p, k)
                    pull_back_weights(trace, window, pulls, row, t, p, k)
                    if t == 0:
                        pull_back_votes(layer, trace, window, pulls, gradients, n, row, p, k)
            pull_back_shares(layer, R, pulls.assignments[t], n, gradients.activations)


@inlined
def take_upstream(upstream: Parents, pulls: Pulls, n: int, t: int, p: int, k: int) -> None:
    """Set g_mu, g_var, g_S and g_z of one block of parents to what the loss says; 0 in empty lanes."""
    for lane in range(LANES):
        c = k * LANES + lane
        live = c < upstream.logits.shape[2]
        pulls.support[lane] = upstream.support[n, p, c] if live else 0.0
        pulls.logits[lane] = upstream.logits[n, p, c] if live else 0.0
        for h in range(POSE):
            pulls.mean[t, p, k, h, lane] = upstream.poses[n, p, c, h] if live else 0.0
            pulls.variance[t, p, k, h, lane] = upstream.variance[n, p, c, h] if live else 0.0


@inlined
def pull_back_log_joint(
    layer: Layer, trace: Trace, window: Window, pulls: Pulls, row: int, t: int, p: int, k: int
) -> None:
    """E-step: g_mu = sum_i g_L d/sigma^2, g_var = sum_i g_L (d^2/sigma^2 - 1) / (2 sigma^2), g_z = (1-a) sum_i g_L."""
    mean, variance = trace.mean[row, t, p, k], trace.variance[row, t, p, k]
    g_mean, g_variance = pulls.mean[t, p, k], pulls.variance[t, p, k]
    for h in range(POSE):
        store(g_mean, (h,), splat(0.0))
        store(g_variance, (h,), splat(0.0))
    g_prior = splat(0.0)
    for i in range(len(window.r)):
        g_L = load(pulls.assignments, (t + 1, p, i, k))
        g_prior += g_L
        for h in range(POSE):
            d = load(window.votes, (i, h)) - load(mean, (h,))
            pull = g_L * d
            store(g_mean, (h,), load(g_mean, (h,)) + pull)
            store(g_variance, (h,), fma(pull, d, load(g_variance, (h,))))
    for h in range(POSE):
        inverse = inverse_variance(variance, h, layer.floor)
        store(g_mean, (h,), load(g_mean, (h,)) * inverse)
        store(g_variance, (h,), splat(0.5) * inverse * (load(g_variance, (h,)) * inverse - g_prior))
    store(pulls.support, (), splat(0.0))
    store(pulls.logits, (), g_prior)
    for lane in range(LANES):
        live = k * LANES + lane < len(layer.beta_a)
        pulls.logits[lane] *= 1.0 / (1.0 + math.exp(trace.logits[row, t, p, k, lane])) if live else 0.0


@inlined
def pull_back_logits(
    layer: Layer, trace: Trace, pulls: Pulls, gradients: Gradients, row: int, t: int, p: int, k: int
) -> None:
    """Of z = lambda (beta_a - sum_i r sum_h (beta_u + log sigma_h)): g_S, g_var and the betas' gradients."""
    variance, g_variance = trace.variance[row, t, p, k], pulls.variance[t, p, k]
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        c = k * LANES + lane
        support = trace.support[row, t, p, k, lane]
        pull = layer.scales[t] * pulls.logits[lane]
        gradients.beta_a[c] += pull
        gradients.beta_u[c] -= pull * support * POSE
        log_sigmas = POSE * layer.beta_u[c] + half_log_volume(variance, lane, layer.floor)
        pulls.support[lane] -= pull * log_sigmas
        pulls.logits[lane] = pull * support
    half_pull = splat(0.5) * load(pulls.logits, ())
    for h in range(POSE):
        store(g_variance, (h,), load(g_variance, (h,)) - half_pull * inverse_variance(variance, h, layer.floor))


@inlined
def pull_back_weights(trace: Trace, window: Window, pulls: Pulls, row: int, t: int, p: int, k: int) -> None:
    """M-step: g_r = g_S + sum_h (g_mu d + g_var (d^2 - var)) / S."""
    mean, variance = trace.mean[row, t, p, k], trace.variance[row, t, p, k]
    g_mean, g_variance = pulls.mean[t, p, k], pulls.variance[t, p, k]
    share = splat(1.0) / (load(trace.support, (row, t, p, k)) + splat(EMPTY))
    level = splat(0.0)
    for h in range(POSE):
        mu = load(window.centre, (h,)) + load(mean, (h,))  # d var / d mu = -2 mu EMPTY / S: not 0 if S is tiny
        slope = splat(-2.0 * EMPTY) * share * mu
        store(g_mean, (h,), fma(load(g_variance, (h,)), slope, load(g_mean, (h,))))
        level = fma(load(g_variance, (h,)), load(variance, (h,)), level)
    level = load(pulls.support, ()) - level * share
    for i in range(len(window.r)):
        pull = splat(0.0)
        for h in range(POSE):
            d = load(window.votes, (i, h)) - load(mean, (h,))
            pull = fma(fma(load(g_variance, (h,)), d, load(g_mean, (h,))), d, pull)
        store(pulls.assignments, (t, p, i, k), fma(pull, share, level))


@inlined
def pull_back_shares(layer: Layer, R: Floats, g_r: Floats, n: int, g_activations: Floats) -> None:
    """Of r = R a: g_a = sum_j g_r R; of the softmax R of L: g_L = R (g_R - sum_j g_R R), in place of g_r."""
    R_slots, g_slots = by_slot(layer, R), by_slot(layer, g_r)
    for group in layer.groups:
        rivals = group[: count_rivals(layer, group)]
        for b in range(R_slots.shape[1]):
            sums = splat(0.0)
            for slot in rivals:
                for k in range(R_slots.shape[2]):
                    sums = fma(load(R_slots, (slot, b, k)), load(g_slots, (slot, b, k)), sums)
            g_a = total(sums)
            for slot in rivals:
                activation = layer.activations[n, layer.windows.flat[slot], b]
                for k in range(R_slots.shape[2]):
                    r = load(R_slots, (slot, b, k)) * splat(activation)
                    store(g_slots, (slot, b, k), r * (load(g_slots, (slot, b, k)) - splat(g_a)))
            if len(rivals):
                g_activations[n, layer.windows.flat[rivals[0]], b] += g_a


@inlined
def pull_back_votes(
    layer: Layer, trace: Trace, window: Window, pulls: Pulls, gradients: Gradients, n: int, row: int, p: int, k: int
) -> None:
    """Collect g_V of all half-steps at once, and contract it with the transforms and with the poses."""
    slots, child_types = layer.windows.shape[1], layer.poses.shape[2]
    iterations = len(layer.scales)
    shared = layer.transforms.shape[0] == 1
    for t in range(iterations):
        for h in range(POSE):
            store(pulls.inverse, (t, h), inverse_variance(trace.variance[row, t, p, k], h, layer.floor))
    for s in range(slots):
        q = layer.windows[p, s]
        w = 0 if shared else s
        for b in range(child_types):
            i = s * child_types + b
            for t in range(iterations):
                R = load(layer.uniform, (p, i, k)) if t == 0 else load(trace.assignments, (row, t - 1, p, i, k))
                support = load(trace.support, (row, t, p, k)) + splat(EMPTY)
                store(pulls.weights, (t,), R * splat(layer.activations[n, q, b]) / support)
            collect_votes(trace, window, pulls, (row, p, i, k))
            pull_back_poses(layer.transforms, pulls.votes, gradients.poses, (n, q, b, w, k))
            if len(gradients.transforms):
                pull_back_transforms(layer.poses, pulls.votes, gradients.transforms, (n, q, b, w, k))


@inlined
def collect_votes(trace: Trace, window: Window, pulls: Pulls, place: tuple[int, int, int, int]) -> None:
    """Set g_V of child i: r/S (g_mu + 2 g_var d) of every M-step, less g_L d / sigma^2 of every E-step."""
    row, p, i, k = place
    iterations = len(pulls.weights)
    for h in range(POSE):
        g_V = splat(0.0)
        for t in range(iterations):
            weight = load(pulls.weights, (t,))
            d = load(window.votes, (i, h)) - load(trace.mean, (row, t, p, k, h))
            slope = splat(2.0) * weight * load(pulls.variance, (t, p, k, h))
            if t + 1 < iterations:
                slope -= load(pulls.assignments, (t + 1, p, i, k)) * load(pulls.inverse, (t, h))
            g_V = fma(slope, d, fma(weight, load(pulls.mean, (t, p, k, h)), g_V))
        store(pulls.votes, (h,), g_V)


@inlined
def pull_back_poses(
    transforms: Floats, g_votes: Floats, g_poses: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Of V = M W: g_M = g_V W^T, added over the parents."""
    n, q, b, w, k = place
    for y in range(4):
        w0, w1 = load(transforms, (w, b, k, 4 * y)), load(transforms, (w, b, k, 4 * y + 1))
        w2, w3 = load(transforms, (w, b, k, 4 * y + 2)), load(transforms, (w, b, k, 4 * y + 3))
        for x in range(4):
            pull = load(g_votes, (4 * x,)) * w0
            pull = fma(load(g_votes, (4 * x + 1,)), w1, pull)
            pull = fma(load(g_votes, (4 * x + 2,)), w2, pull)
            g_poses[n, q, b, 4 * x + y] += total(fma(load(g_votes, (4 * x + 3,)), w3, pull))


@inlined
def pull_back_transforms(
    poses: Floats, g_votes: Floats, g_transforms: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Of V = M W: g_W = M^T g_V, added over the children."""
    n, q, b, w, k = place
    for z in range(4):
        g0, g1, g2, g3 = load(g_votes, (z,)), load(g_votes, (4 + z,)), load(g_votes, (8 + z,)), load(g_votes, (12 + z,))
        for y in range(4):
            pull = fma(splat(poses[n, q, b, y]), g0, load(g_transforms, (w, b, k, 4 * y + z)))
            pull = fma(splat(poses[n, q, b, 4 + y]), g1, pull)
            pull = fma(splat(poses[n, q, b, 8 + y]), g2, pull)
            store(g_transforms, (w, b, k, 4 * y + z), fma(splat(poses[n, q, b, 12 + y]), g3, pull))
