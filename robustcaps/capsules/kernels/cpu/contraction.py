"""The last part of the backward kernel: g_V of all E- and M-steps, contracted with transforms and poses.

Symbols as in `backward`.
"""

from __future__ import annotations

from robustcaps.capsules.kernels.cpu.jit import inlined
from robustcaps.capsules.kernels.cpu.lanes import fma, load, splat, store, totals
from robustcaps.capsules.kernels.cpu.votes import (
    POSE,
    Floats,
    InputGradients,
    NumbaGradients,
    NumbaLayer,
    NumbaTrace,
    VoteWindow,
    inverse_variance,
    slots_share,
)
from robustcaps.capsules.routing.em import SUPPORT_EPS


@inlined
def backward_votes(
    layer: NumbaLayer,
    trace: NumbaTrace,
    window: VoteWindow,
    grads: NumbaGradients,
    gradients: InputGradients,
    n: int,
    row: int,
    p: int,
    k: int,
) -> None:
    """Collect g_V of all E- and M-steps, and contract it with transforms and poses."""
    slots, child_types = layer.windows.shape[1], layer.poses.shape[2]
    iterations = len(layer.scales)
    shared = slots_share(layer)
    for t in range(iterations):
        for h in range(POSE):
            store(grads.inverse, (t, h), inverse_variance(trace.variance[row, t, p, k], h, layer.floor))
    for s in range(slots):
        q = layer.windows[p, s]
        for b in range(child_types):
            i = s * child_types + b
            for t in range(iterations):
                R = load(layer.uniform, (p, i, k)) if t == 0 else load(trace.assignments, (row, t - 1, p, i, k))
                support = load(trace.support, (row, t, p, k)) + splat(SUPPORT_EPS)
                store(grads.weights, (t,), R * splat(layer.activations[n, q, b]) / support)
            collect_votes(trace, window, grads, (row, p, i, k))
            backward_transformed(layer, grads, gradients, (n, q, b, b if shared else i, k))


@inlined
def collect_votes(
    trace: NumbaTrace, window: VoteWindow, grads: NumbaGradients, place: tuple[int, int, int, int]
) -> None:
    """Set g_V of child i: r/S (g_mu + 2 g_var d) of every M-step, less g_L d / sigma^2 of every E-step."""
    row, p, i, k = place
    iterations = len(grads.weights)
    for h in range(POSE):
        g_V = splat(0.0)
        for t in range(iterations):
            weight = load(grads.weights, (t,))
            d = load(window.votes, (i, h)) - load(trace.mean, (row, t, p, k, h))
            slope = splat(2.0) * weight * load(grads.variance, (t, p, k, h))
            if t + 1 < iterations:
                slope -= load(grads.assignments, (t + 1, p, i, k)) * load(grads.inverse, (t, h))
            g_V = fma(slope, d, fma(weight, load(grads.mean, (t, p, k, h)), g_V))
        store(grads.votes, (h,), g_V)


@inlined
def backward_transformed(
    layer: NumbaLayer, grads: NumbaGradients, gradients: InputGradients, place: tuple[int, int, int, int, int]
) -> None:
    """Through V = M W: g_M and, if needed, g_W."""
    if len(layer.vectors) > 0:
        backward_vectors(layer.transforms, grads.votes, grads.by_parent, gradients.poses, place)
        if len(gradients.transforms):
            backward_vector_transforms(layer.poses, grads.votes, gradients.transforms, place)
    else:
        backward_poses(layer.transforms, grads.votes, grads.by_parent, gradients.poses, place)
        if len(gradients.transforms):
            backward_transforms(layer.poses, grads.votes, gradients.transforms, place)


@inlined
def backward_vectors(
    transforms: Floats, g_votes: Floats, by_parent: Floats, g_poses: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Through vectors V = M W: g_M = W g_V, summed over the parents."""
    n, q, b, w, k = place
    for y in range(POSE):
        grad = splat(0.0)
        for z in range(POSE):
            grad = fma(load(g_votes, (z,)), load(transforms, (z, w, k, y)), grad)
        store(by_parent, (y,), grad)
    store(g_poses, (n, q, b), load(g_poses, (n, q, b)) + totals(by_parent))


@inlined
def backward_vector_transforms(
    poses: Floats, g_votes: Floats, g_transforms: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Through vectors V = M W: g_W = M^T g_V, summed over the children."""
    n, q, b, w, k = place
    for y in range(POSE):
        component = splat(poses[n, q, b, y])
        for z in range(POSE):
            grad = fma(component, load(g_votes, (z,)), load(g_transforms, (z, w, k, y)))
            store(g_transforms, (z, w, k, y), grad)


@inlined
def backward_poses(
    transforms: Floats, g_votes: Floats, by_parent: Floats, g_poses: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Through V = M W: g_M = g_V W^T, summed over the parents."""
    n, q, b, w, k = place
    for y in range(4):
        w0, w1 = load(transforms, (0, w, k, y)), load(transforms, (1, w, k, y))
        w2, w3 = load(transforms, (2, w, k, y)), load(transforms, (3, w, k, y))
        for x in range(4):
            grad = load(g_votes, (4 * x,)) * w0
            grad = fma(load(g_votes, (4 * x + 1,)), w1, grad)
            grad = fma(load(g_votes, (4 * x + 2,)), w2, grad)
            store(by_parent, (4 * x + y,), fma(load(g_votes, (4 * x + 3,)), w3, grad))
    store(g_poses, (n, q, b), load(g_poses, (n, q, b)) + totals(by_parent))


@inlined
def backward_transforms(
    poses: Floats, g_votes: Floats, g_transforms: Floats, place: tuple[int, int, int, int, int]
) -> None:
    """Through V = M W: g_W = M^T g_V, summed over the children."""
    n, q, b, w, k = place
    for z in range(4):
        g0, g1, g2, g3 = load(g_votes, (z,)), load(g_votes, (4 + z,)), load(g_votes, (8 + z,)), load(g_votes, (12 + z,))
        for y in range(4):
            grad = fma(splat(poses[n, q, b, y]), g0, load(g_transforms, (z, w, k, y)))
            grad = fma(splat(poses[n, q, b, 4 + y]), g1, grad)
            grad = fma(splat(poses[n, q, b, 8 + y]), g2, grad)
            store(g_transforms, (z, w, k, y), fma(splat(poses[n, q, b, 12 + y]), g3, grad))
