"""The gradient of EM routing, derived by hand; votes are formed again from poses and transforms.

Symbols: g_x is the gradient of the loss by x; d = V - mu; S = sum_i r + EMPTY; var has no floor, sigma^2 does.
"""

from __future__ import annotations

from typing import NamedTuple

from robustcaps.capsules.kernels.cpu.forward import Parents
from robustcaps.capsules.kernels.cpu.jit import compiled, inlined
from robustcaps.capsules.kernels.cpu.lanes import LANES, exp, fma, load, maximum, splat, store, total, totals
from robustcaps.capsules.kernels.cpu.votes import (
    COST,
    MEAN_COST,
    MIXTURE,
    POSE,
    Floats,
    Ints,
    Layer,
    Trace,
    Window,
    count_rivals,
    half_log_volume,
    inverse_variance,
    open_window,
    set_volumes,
    slot_shape,
    slots_share,
    store_four,
)
from robustcaps.capsules.routing.em import EMPTY, WHOLE


class Gradients(NamedTuple):
    """Where gradients are added up; all start at 0."""

    poses: Floats
    """(n, Q, B, H)."""
    activations: Floats
    """(n, Q, B)."""
    transforms: Floats
    """As `Layer.transforms`, or of length 0 where nobody asks for it."""
    beta_a: Floats
    """(C,)."""
    beta_u: Floats
    """(C,)."""
    totals: Floats
    """(n,)."""


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
    by_parent: Floats
    """What each parent adds to g_M of the child at hand (H, 16 lanes)."""
    weights: Floats
    """r/S of the child at hand (T, 16 lanes)."""
    inverse: Floats
    """1 / sigma^2 of the block at hand (T, H, 16 lanes)."""
    volumes: Floats
    """sum_h log (sigma^h)^2 of the block at hand, as `set_volumes` keeps it (2, 16 lanes); of the rule `COST` alone."""


@compiled
def pull_back_parts(
    layer: Layer,
    trace: Trace,
    upstream: Parents,
    window: Window,
    pulls: Pulls,
    totals: Gradients,
    bounds: Ints,
    first: int,
    last: int,
) -> None:
    """Add the gradients of parts first..last-1 of the batch, from those of their parents.

    `totals` are as `Gradients`, with the parameters' apart for each part; part k is samples bounds[k]..bounds[k+1]-1.
    """
    for part in range(first, last):
        parameters = totals.transforms[part], totals.beta_a[part], totals.beta_u[part]
        gradients = Gradients(totals.poses, totals.activations, *parameters, totals.totals)
        pull_back_samples(layer, trace, upstream, window, pulls, gradients, bounds[part], bounds[part + 1])


@inlined
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
    """Add the gradients of samples first..last-1."""
    positions, _, blocks, _ = layer.uniform.shape
    iterations = len(layer.scales)
    for n in range(first, last):
        row = n
        for t in range(iterations - 1, -1, -1):
            R = layer.uniform if t == 0 else trace.assignments[row, t - 1]
            for p in range(positions):
                for k in range(blocks):
                    open_window(layer, R, n, p, k, window)
                    if t == iterations - 1:
                        take_upstream(upstream, pulls, n, t, p, k)
                    else:
                        pull_back_log_joint(layer, trace, window, pulls, row, t, p, k)
                    pull_back_logits(layer, trace, pulls, gradients, n, row, t, p, k)
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
    g_L = pulls.assignments[t + 1, p, :, k]
    g_prior = splat(0.0)
    for i in range(len(window.r)):
        g_prior += load(g_L, (i,))
    for h in range(0, POSE, 4):
        pull_components(window, g_L, mean, g_mean, g_variance, h)
    for h in range(POSE):
        inverse = inverse_variance(variance, h, layer.floor)
        store(g_mean, (h,), load(g_mean, (h,)) * inverse)
        store(g_variance, (h,), splat(0.5) * inverse * (load(g_variance, (h,)) * inverse - g_prior))
    store(pulls.support, (), splat(0.0))
    z, nothing = load(trace.logits, (row, t, p, k)), splat(0.0)
    absent = exp(nothing - maximum(nothing, z)) / (splat(1.0) + exp(nothing - maximum(z, nothing - z)))  # 1 - a
    store(pulls.logits, (), g_prior * absent)
    for lane in range(len(layer.beta_a) - k * LANES, LANES):
        pulls.logits[lane] = 0.0


@inlined
def pull_components(window: Window, g_L: Floats, mean: Floats, g_mean: Floats, g_variance: Floats, h: int) -> None:
    """Set sum_i g_L d and sum_i g_L d^2 of components h..h+3, which stay in registers."""
    mu0, mu1, mu2, mu3 = load(mean, (h,)), load(mean, (h + 1,)), load(mean, (h + 2,)), load(mean, (h + 3,))
    m0, m1, m2, m3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    v0, v1, v2, v3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for i in range(len(window.r)):
        pull = load(g_L, (i,))
        d0, d1 = load(window.votes, (i, h)) - mu0, load(window.votes, (i, h + 1)) - mu1
        d2, d3 = load(window.votes, (i, h + 2)) - mu2, load(window.votes, (i, h + 3)) - mu3
        p0, p1, p2, p3 = pull * d0, pull * d1, pull * d2, pull * d3
        m0, m1, m2, m3 = m0 + p0, m1 + p1, m2 + p2, m3 + p3
        v0, v1, v2, v3 = fma(p0, d0, v0), fma(p1, d1, v1), fma(p2, d2, v2), fma(p3, d3, v3)
    store_four(g_mean, h, (m0, m1, m2, m3))
    store_four(g_variance, h, (v0, v1, v2, v3))


@inlined
def pull_back_logits(
    layer: Layer, trace: Trace, pulls: Pulls, gradients: Gradients, n: int, row: int, t: int, p: int, k: int
) -> None:
    """Of the logits z: g_S, g_var, and the gradients of what prices a parent."""
    variance, g_variance = trace.variance[row, t, p, k], pulls.variance[t, p, k]
    if layer.rule == COST:
        set_volumes(pulls.volumes, variance, layer.floor)
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        if layer.rule == MIXTURE:
            pull_back_share(layer, trace, pulls, gradients, (n, row, t, p, k, lane))
        else:
            pull_back_cost(layer, trace, pulls, gradients, (row, t, p, k, lane))
    half_pull = splat(0.5) * load(pulls.logits, ())
    for h in range(POSE):
        store(g_variance, (h,), load(g_variance, (h,)) - half_pull * inverse_variance(variance, h, layer.floor))


@inlined
def pull_back_cost(
    layer: Layer, trace: Trace, pulls: Pulls, gradients: Gradients, place: tuple[int, int, int, int, int]
) -> None:
    """Of z = lambda (beta_a - S sum_h (beta_u + log sigma_h)), or 1 for S: g_S, betas; leaves -g_{log sigma} as g_z."""
    row, t, p, k, lane = place
    c = k * LANES + lane
    pull = layer.scales[t] * pulls.logits[lane]
    weight = trace.support[row, t, p, k, lane]
    if layer.rule == MEAN_COST:
        weight = 1.0
    else:
        log_sigmas = POSE * layer.beta_u[c] + half_log_volume(pulls.volumes, lane)
        pulls.support[lane] -= pull * log_sigmas
    gradients.beta_a[c] += pull
    gradients.beta_u[c] -= pull * weight * POSE
    pulls.logits[lane] = pull * weight


@inlined
def pull_back_share(
    layer: Layer, trace: Trace, pulls: Pulls, gradients: Gradients, place: tuple[int, int, int, int, int, int]
) -> None:
    """Of z = log S - log((1 + WHOLE) A - S), A the total of the layer: g_S and g_A; sigma has no say."""
    n, row, t, p, k, lane = place
    support, pull = trace.support[row, t, p, k, lane], pulls.logits[lane]
    rest = (1.0 + WHOLE) * layer.totals[n] - support + EMPTY
    pulls.support[lane] += pull / (support + EMPTY) + pull / rest
    gradients.totals[n] -= pull * (1.0 + WHOLE) / rest
    pulls.logits[lane] = 0.0


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
    shape = slot_shape(layer, R)
    R_slots, g_slots = R.reshape(shape), g_r.reshape(shape)
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
    shared = slots_share(layer)
    for t in range(iterations):
        for h in range(POSE):
            store(pulls.inverse, (t, h), inverse_variance(trace.variance[row, t, p, k], h, layer.floor))
    for s in range(slots):
        q = layer.windows[p, s]
        for b in range(child_types):
            i = s * child_types + b
            for t in range(iterations):
                R = load(layer.uniform, (p, i, k)) if t == 0 else load(trace.assignments, (row, t - 1, p, i, k))
                support = load(trace.support, (row, t, p, k)) + splat(EMPTY)
                store(pulls.weights, (t,), R * splat(layer.activations[n, q, b]) / support)
            collect_votes(trace, window, pulls, (row, p, i, k))
            pull_back_transformed(layer, pulls, gradients, (n, q, b, b if shared else i, k))


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
def pull_back_transformed(
    layer: Layer, pulls: Pulls, gradients: Gradients, place: tuple[int, int, int, int, int]
) -> None:
    """Of V = M W: g_M and, where somebody asks for it, g_W."""
    if len(layer.vectors) > 0:
        pull_back_vectors(layer.transforms, pulls.votes, pulls.by_parent, gradients.poses, place)
        if len(gradients.transforms):
            pull_back_vector_transforms(layer.poses, pulls.votes, gradients.transforms, place)
    else:
        pull_back_poses(layer.transforms, pulls.votes, pulls.by_parent, gradients.poses, place)
        if len(gradients.transforms):
            pull_back_transforms(layer.poses, pulls.votes, gradients.transforms, place)


@inlined
def pull_back_vectors(
    transforms: Floats, g_votes: Floats, by_parent: Floats, g_poses: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Of vectors V = M W: g_M = W g_V, added over the parents."""
    n, q, b, w, k = place
    for y in range(POSE):
        pull = splat(0.0)
        for z in range(POSE):
            pull = fma(load(g_votes, (z,)), load(transforms, (z, w, k, y)), pull)
        store(by_parent, (y,), pull)
    store(g_poses, (n, q, b), load(g_poses, (n, q, b)) + totals(by_parent))


@inlined
def pull_back_vector_transforms(
    poses: Floats, g_votes: Floats, g_transforms: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Of vectors V = M W: g_W = M^T g_V, added over the children."""
    n, q, b, w, k = place
    for y in range(POSE):
        component = splat(poses[n, q, b, y])
        for z in range(POSE):
            pull = fma(component, load(g_votes, (z,)), load(g_transforms, (z, w, k, y)))
            store(g_transforms, (z, w, k, y), pull)


@inlined
def pull_back_poses(
    transforms: Floats, g_votes: Floats, by_parent: Floats, g_poses: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Of V = M W: g_M = g_V W^T, added over the parents."""
    n, q, b, w, k = place
    for y in range(4):
        w0, w1 = load(transforms, (0, w, k, y)), load(transforms, (1, w, k, y))
        w2, w3 = load(transforms, (2, w, k, y)), load(transforms, (3, w, k, y))
        for x in range(4):
            pull = load(g_votes, (4 * x,)) * w0
            pull = fma(load(g_votes, (4 * x + 1,)), w1, pull)
            pull = fma(load(g_votes, (4 * x + 2,)), w2, pull)
            store(by_parent, (4 * x + y,), fma(load(g_votes, (4 * x + 3,)), w3, pull))
    store(g_poses, (n, q, b), load(g_poses, (n, q, b)) + totals(by_parent))


@inlined
def pull_back_transforms(
    poses: Floats, g_votes: Floats, g_transforms: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Of V = M W: g_W = M^T g_V, added over the children."""
    n, q, b, w, k = place
    for z in range(4):
        g0, g1, g2, g3 = load(g_votes, (z,)), load(g_votes, (4 + z,)), load(g_votes, (8 + z,)), load(g_votes, (12 + z,))
        for y in range(4):
            pull = fma(splat(poses[n, q, b, y]), g0, load(g_transforms, (z, w, k, y)))
            pull = fma(splat(poses[n, q, b, 4 + y]), g1, pull)
            pull = fma(splat(poses[n, q, b, 8 + y]), g2, pull)
            store(g_transforms, (z, w, k, y), fma(splat(poses[n, q, b, 12 + y]), g3, pull))
