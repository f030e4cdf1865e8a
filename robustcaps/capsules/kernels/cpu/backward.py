"""The backward kernel: hand-derived gradients of EM routing; votes are recomputed from poses and transforms.

Symbols: g_x is the gradient of the loss by x; d = V - mu; S = sum_i r + SUPPORT_EPS; var excludes the floor, which
sigma^2 includes.
"""

from __future__ import annotations

from robustcaps.capsules.kernels.cpu.contraction import backward_votes
from robustcaps.capsules.kernels.cpu.forward import NumbaParents
from robustcaps.capsules.kernels.cpu.jit import compiled, inlined
from robustcaps.capsules.kernels.cpu.lanes import LANES, Lanes, exp, fma, load, maximum, splat, store, total
from robustcaps.capsules.kernels.cpu.votes import (
    COST,
    MEAN_COST,
    MIXTURE,
    POSE,
    Floats,
    InputGradients,
    Ints,
    NumbaGradients,
    NumbaLayer,
    NumbaTrace,
    VoteWindow,
    count_rivals,
    fill_window,
    half_log_volume,
    inverse_variance,
    set_volumes,
    slot_shape,
    store_four,
)
from robustcaps.capsules.routing.em import SHARE_EPS, SUPPORT_EPS


@compiled
def backward_parts(
    layer: NumbaLayer,
    trace: NumbaTrace,
    upstream: NumbaParents,
    window: VoteWindow,
    grads: NumbaGradients,
    totals: InputGradients,
    bounds: Ints,
    first: int,
    last: int,
) -> None:
    """Add the gradients of parts first..last-1 of the batch, given those of their parents.

    `totals` are `InputGradients` with separate parameter gradients for each part; part k consists of the samples
    bounds[k]..bounds[k+1]-1.
    """
    for part in range(first, last):
        parameters = totals.transforms[part], totals.beta_a[part], totals.beta_u[part]
        gradients = InputGradients(totals.poses, totals.activations, *parameters, totals.totals)
        backward_samples(layer, trace, upstream, window, grads, gradients, bounds[part], bounds[part + 1])


@inlined
def backward_samples(
    layer: NumbaLayer,
    trace: NumbaTrace,
    upstream: NumbaParents,
    window: VoteWindow,
    grads: NumbaGradients,
    gradients: InputGradients,
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
                    fill_window(layer, R, n, p, k, window)
                    if t == iterations - 1:
                        load_upstream(upstream, grads, n, t, p, k)
                    else:
                        backward_log_joint(layer, trace, window, grads, row, t, p, k)
                        if layer.momentum > 0.0:
                            add_carry(grads, t, p, k)
                    backward_logits(layer, trace, grads, gradients, n, row, t, p, k)
                    backward_weights(layer, trace, window, grads, row, t, p, k)
                    if t == 0:
                        backward_votes(layer, trace, window, grads, gradients, n, row, p, k)
            if layer.by_type:
                backward_assignments_by_type(layer, R, grads.assignments[t], n, gradients.activations)
            else:
                backward_assignments(layer, R, grads.assignments[t], n, gradients.activations)


@inlined
def add_carry(grads: NumbaGradients, t: int, p: int, k: int) -> None:
    """Add to g_mu what the mean of the next iteration kept of it."""
    for h in range(POSE):
        store(grads.mean, (t, p, k, h), load(grads.mean, (t, p, k, h)) + load(grads.carry, (p, k, h)))


@inlined
def load_upstream(upstream: NumbaParents, grads: NumbaGradients, n: int, t: int, p: int, k: int) -> None:
    """Set g_mu, g_var, g_S and g_z of one block of parents to those of the loss; 0 in empty lanes."""
    for lane in range(LANES):
        c = k * LANES + lane
        live = c < upstream.logits.shape[2]
        grads.support[lane] = upstream.support[n, p, c] if live else 0.0
        grads.logits[lane] = upstream.logits[n, p, c] if live else 0.0
        for h in range(POSE):
            grads.mean[t, p, k, h, lane] = upstream.poses[n, p, c, h] if live else 0.0
            grads.variance[t, p, k, h, lane] = upstream.variance[n, p, c, h] if live else 0.0


@inlined
def backward_log_joint(
    layer: NumbaLayer, trace: NumbaTrace, window: VoteWindow, grads: NumbaGradients, row: int, t: int, p: int, k: int
) -> None:
    """E-step: g_mu = sum_i g_L d/sigma^2, g_var = sum_i g_L (d^2/sigma^2 - 1) / (2 sigma^2), g_z = (1-a) sum_i g_L."""
    mean, variance = trace.mean[row, t, p, k], trace.variance[row, t, p, k]
    g_mean, g_variance = grads.mean[t, p, k], grads.variance[t, p, k]
    g_L = grads.assignments[t + 1, p, :, k]
    g_prior = splat(0.0)
    for i in range(len(window.r)):
        g_prior += load(g_L, (i,))
    for h in range(0, POSE, 4):
        backward_components(window, g_L, mean, g_mean, g_variance, h)
    for h in range(POSE):
        inverse = inverse_variance(variance, h, layer.floor)
        store(g_mean, (h,), load(g_mean, (h,)) * inverse)
        store(g_variance, (h,), splat(0.5) * inverse * (load(g_variance, (h,)) * inverse - g_prior))
    store(grads.support, (), splat(0.0))
    z, nothing = load(trace.logits, (row, t, p, k)), splat(0.0)
    absent = exp(nothing - maximum(nothing, z)) / (splat(1.0) + exp(nothing - maximum(z, nothing - z)))  # 1 - a
    store(grads.logits, (), g_prior * absent)
    for lane in range(len(layer.beta_a) - k * LANES, LANES):
        grads.logits[lane] = 0.0


@inlined
def backward_components(
    window: VoteWindow, g_L: Floats, mean: Floats, g_mean: Floats, g_variance: Floats, h: int
) -> None:
    """Set sum_i g_L d and sum_i g_L d^2 of components h..h+3, kept in registers."""
    mu0, mu1, mu2, mu3 = load(mean, (h,)), load(mean, (h + 1,)), load(mean, (h + 2,)), load(mean, (h + 3,))
    m0, m1, m2, m3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    v0, v1, v2, v3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for i in range(len(window.r)):
        grad = load(g_L, (i,))
        d0, d1 = load(window.votes, (i, h)) - mu0, load(window.votes, (i, h + 1)) - mu1
        d2, d3 = load(window.votes, (i, h + 2)) - mu2, load(window.votes, (i, h + 3)) - mu3
        p0, p1, p2, p3 = grad * d0, grad * d1, grad * d2, grad * d3
        m0, m1, m2, m3 = m0 + p0, m1 + p1, m2 + p2, m3 + p3
        v0, v1, v2, v3 = fma(p0, d0, v0), fma(p1, d1, v1), fma(p2, d2, v2), fma(p3, d3, v3)
    store_four(g_mean, h, (m0, m1, m2, m3))
    store_four(g_variance, h, (v0, v1, v2, v3))


@inlined
def backward_logits(
    layer: NumbaLayer,
    trace: NumbaTrace,
    grads: NumbaGradients,
    gradients: InputGradients,
    n: int,
    row: int,
    t: int,
    p: int,
    k: int,
) -> None:
    """Through the logits z: g_S, g_var and the gradients of beta_a and beta_u."""
    variance, g_variance = trace.variance[row, t, p, k], grads.variance[t, p, k]
    if layer.rule == COST:
        set_volumes(grads.volumes, variance, layer.floor)
    for lane in range(min(LANES, len(layer.beta_a) - k * LANES)):
        if layer.rule == MIXTURE:
            backward_mixture(layer, trace, grads, gradients, (n, row, t, p, k, lane))
        else:
            backward_cost(layer, trace, grads, gradients, (row, t, p, k, lane))
    half_grad = splat(0.5) * load(grads.logits, ())
    for h in range(POSE):
        store(g_variance, (h,), load(g_variance, (h,)) - half_grad * inverse_variance(variance, h, layer.floor))


@inlined
def backward_cost(
    layer: NumbaLayer,
    trace: NumbaTrace,
    grads: NumbaGradients,
    gradients: InputGradients,
    place: tuple[int, int, int, int, int],
) -> None:
    """Through z = lambda (beta_a - S sum_h (beta_u + log sigma_h)), or S = 1: g_S, betas, and -g_{log sigma} as g_z."""
    row, t, p, k, lane = place
    c = k * LANES + lane
    grad = layer.scales[t] * grads.logits[lane]
    weight = trace.support[row, t, p, k, lane]
    if layer.rule == MEAN_COST:
        weight = 1.0
    else:
        log_sigmas = POSE * layer.beta_u[c] + half_log_volume(grads.volumes, lane)
        grads.support[lane] -= grad * log_sigmas
    gradients.beta_a[c] += grad
    gradients.beta_u[c] -= grad * weight * POSE
    grads.logits[lane] = grad * weight


@inlined
def backward_mixture(
    layer: NumbaLayer,
    trace: NumbaTrace,
    grads: NumbaGradients,
    gradients: InputGradients,
    place: tuple[int, int, int, int, int, int],
) -> None:
    """Through z = log S - log((1 + SHARE_EPS) A - S), A the total of the layer: g_S and g_A; independent of sigma."""
    n, row, t, p, k, lane = place
    support, grad = trace.support[row, t, p, k, lane], grads.logits[lane]
    rest = (1.0 + SHARE_EPS) * layer.totals[n] - support + SUPPORT_EPS
    grads.support[lane] += grad / (support + SUPPORT_EPS) + grad / rest
    gradients.totals[n] -= grad * (1.0 + SHARE_EPS) / rest
    grads.logits[lane] = 0.0


@inlined
def backward_weights(
    layer: NumbaLayer, trace: NumbaTrace, window: VoteWindow, grads: NumbaGradients, row: int, t: int, p: int, k: int
) -> None:
    """M-step: g_r = g_S + sum_h (g_mean (d - gap) + g_var (d^2 - var)) / S.

    gap = mean - mu is 0 without momentum. g_mean = (1 - m) g_mu replaces g_mu; m g_mu is carried over to the former
    iteration.
    """
    mean, variance = trace.mean[row, t, p, k], trace.variance[row, t, p, k]
    g_mean, g_variance = grads.mean[t, p, k], grads.variance[t, p, k]
    share = splat(1.0) / (load(trace.support, (row, t, p, k)) + splat(SUPPORT_EPS))
    level = splat(0.0)
    for h in range(POSE):
        mu = load(window.centre, (h,)) + load(mean, (h,))  # d var / d mu = -2 mu SUPPORT_EPS / S: not 0 if S is tiny
        slope = splat(-2.0 * SUPPORT_EPS) * share * mu
        store(g_mean, (h,), fma(load(g_variance, (h,)), slope, load(g_mean, (h,))))
        level = fma(load(g_variance, (h,)), load(variance, (h,)), level)
    if layer.momentum > 0.0:
        level += backward_momentum(layer, trace, window, grads, row, t, p, k)
    level = load(grads.support, ()) - level * share
    for i in range(len(window.r)):
        grad = splat(0.0)
        for h in range(POSE):
            d = load(window.votes, (i, h)) - load(mean, (h,))
            grad = fma(fma(load(g_variance, (h,)), d, load(g_mean, (h,))), d, grad)
        store(grads.assignments, (t, p, i, k), fma(grad, share, level))


@inlined
def backward_momentum(
    layer: NumbaLayer, trace: NumbaTrace, window: VoteWindow, grads: NumbaGradients, row: int, t: int, p: int, k: int
) -> Lanes:
    """Replace g_mu by g_mean = (1 - m) g_mu, carry m g_mu over to the former iteration; return sum_h g_mean gap."""
    mean, g_mean, g_variance = trace.mean[row, t, p, k], grads.mean[t, p, k], grads.variance[t, p, k]
    kept, level = splat(layer.momentum / (1.0 - layer.momentum)), splat(0.0)
    for h in range(POSE):
        former = splat(0.0) - load(window.centre, (h,)) if t == 0 else load(trace.mean, (row, t - 1, p, k, h))
        gap = kept * (load(mean, (h,)) - former)
        grad_mu = load(g_mean, (h,)) - splat(2.0) * gap * load(g_variance, (h,))
        grad_mean = splat(1.0 - layer.momentum) * grad_mu
        store(grads.carry, (p, k, h), grad_mu - grad_mean)
        store(g_mean, (h,), grad_mean)
        level = fma(grad_mean, gap, level)
    return level


@inlined
def backward_assignments(layer: NumbaLayer, R: Floats, g_r: Floats, n: int, g_activations: Floats) -> None:
    """Through r = R a: g_a = sum_j g_r R; through the softmax R of L: g_L = R (g_R - sum_j g_R R), in place of g_r."""
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
def backward_assignments_by_type(layer: NumbaLayer, R: Floats, g_r: Floats, n: int, g_activations: Floats) -> None:
    """The same for the competition `type`: the softmax is over the windows of one type of parent.

    The slots of a group may belong to different children, so each has its own activation.
    """
    shape = slot_shape(layer, R)
    R_slots, g_slots = R.reshape(shape), g_r.reshape(shape)
    for group in layer.groups:
        rivals = group[: count_rivals(layer, group)]
        for b in range(R_slots.shape[1]):
            for k in range(R_slots.shape[2]):
                sums = splat(0.0)
                for slot in rivals:
                    q = layer.windows.flat[slot]
                    product = load(R_slots, (slot, b, k)) * load(g_slots, (slot, b, k))
                    g_activations[n, q, b] += total(product)
                    sums = fma(product, splat(layer.activations[n, q, b]), sums)
                for slot in rivals:
                    g_R = load(g_slots, (slot, b, k)) * splat(layer.activations[n, layer.windows.flat[slot], b])
                    store(g_slots, (slot, b, k), load(R_slots, (slot, b, k)) * (g_R - sums))
