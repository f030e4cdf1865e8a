"""The last backward pass: g_V of all E- and M-steps, contracted with transforms and poses.

Without atomic additions: every sum belongs to one program, so results are deterministic.
"""

from __future__ import annotations

import triton.language as tl

from robustcaps.capsules.kernels.cuda.forward import SUPPORT_EPS
from robustcaps.capsules.kernels.cuda.jit import compiled, inlined
from robustcaps.capsules.kernels.cuda.layer import TritonGradients, TritonLayer, TritonTrace
from robustcaps.capsules.kernels.cuda.votes import (
    POSE,
    as_tile,
    child_at,
    load_poses,
    pair_at,
    parent_at,
    relative_votes,
    slot_at,
    split,
    transforms_at,
    up_to,
)


@inlined
def vote_gradients(
    layer: TritonLayer,
    trace: TritonTrace,
    grads: TritonGradients,
    n: tl.tensor,
    p: tl.tensor,
    i: tl.tensor,
    c: tl.tensor,
    live: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
) -> tl.tensor:
    """Return g_V (E, C, H): r/S (g_mean + 2 g_var d) of every M-step, less g_L d / sigma^2 of every E-step."""
    votes = relative_votes(layer, load_poses(trace.centre, parent_at(layer, n, p, c)), n, p, i, c, SIDE, SHARED)
    a = tl.load(layer.activations + child_at(layer, n, p, i))[:, None]
    uniform = tl.load(layer.uniform + slot_at(layer, p, i))[:, None]
    g_votes = tl.full(votes.shape, 0.0, tl.float32)
    for t in range(layer.iterations):
        parent = parent_at(layer, n + t * layer.samples, p, c)
        if t == 0:
            R = tl.where(live, uniform, 0.0)
        else:
            pair = pair_at(layer, n + (t - 1) * layer.samples, p, i, c)
            R = tl.load(trace.assignments + pair, mask=live, other=0.0)
        weight = (R * a / (tl.load(trace.support + parent) + SUPPORT_EPS))[:, :, None]
        slope = 2.0 * weight * load_poses(grads.variance, parent)
        if t + 1 < layer.iterations:
            pair = pair_at(layer, n + (t + 1) * layer.samples, p, i, c)
            g_L = tl.load(grads.assignments + pair, mask=live, other=0.0)
            slope -= g_L[:, :, None] / (load_poses(trace.variance, parent) + layer.floor)
        d = votes - load_poses(trace.mean, parent)
        g_votes += weight * load_poses(grads.mean, parent) + slope * d
    return g_votes


@compiled
def backward_poses(
    layer: TritonLayer,
    trace: TritonTrace,
    grads: TritonGradients,
    g_poses: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    CHILDREN: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """Through V = M W, at one child position: g_M = g_V W^T, summed over all parents of each child."""
    ROWS: tl.constexpr = POSE // SIDE
    n, q = split(tl.program_id(0), layer.positions)
    b, b_live = up_to(tl.program_id(1) * CHILDREN, layer.child_types, CHILDREN)
    g_M = tl.full((CHILDREN, ROWS, SIDE), 0.0, tl.float32)
    column = tl.arange(0, SIDE)[None, None, :]
    z = tl.arange(0, POSE)[None, None, :] % SIDE
    for copy in range(tl.load(layer.child_copies + q)):
        slot = tl.load(layer.child_slots + q * layer.max_child_copies + copy)
        p = as_tile(slot // layer.slots)
        i = slot % layer.slots * layer.child_types + b
        for first in range(0, layer.types, TYPES):
            c, c_live = up_to(first, layer.types, TYPES)
            live = b_live[:, None] & c_live[None, :]
            g_V = vote_gradients(layer, trace, grads, as_tile(n), p, i, c, live, SIDE, SHARED)
            W = layer.transforms + transforms_at(layer, i, c, SIDE, SHARED) + z
            for y in tl.static_range(SIDE):
                grad = tl.sum(g_V * tl.load(W + y * SIDE), axis=1)
                grad = tl.sum(tl.reshape(grad, (CHILDREN, ROWS, SIDE)), axis=2, keep_dims=True)
                g_M += tl.where(column == y, grad, 0.0)
    child = ((n * layer.positions + q) * layer.child_types + b)[:, None, None]
    place = g_poses + child * POSE + tl.arange(0, ROWS)[None, :, None] * SIDE + column
    tl.store(place, g_M, mask=b_live[:, None, None])


@compiled
def backward_transforms(
    layer: TritonLayer,
    trace: TritonTrace,
    grads: TritonGradients,
    g_transforms: tl.tensor,
    span: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    PAIRS: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """Through V = M W, for the children of one transform: g_W = M^T g_V, summed over the windows of a batch part.

    A part has `span` windows (or slots, if they share transforms); g_transforms (parts, ...) keeps parts separate.
    """
    ROWS: tl.constexpr = POSE // SIDE
    which, part = tl.program_id(0), tl.program_id(2)
    c, c_live = up_to(tl.program_id(1) * TYPES, layer.types, TYPES)
    g_W = tl.full((TYPES, SIDE, SIDE), 0.0, tl.float32)
    row = tl.arange(0, SIDE)[None, :, None]
    x = tl.arange(0, POSE)[None, None, :] // SIDE
    slots = layer.slots if SHARED else 1
    end = tl.minimum((part + 1) * span, layer.samples * layer.parents * slots)
    for first in range(part * span, end, PAIRS):
        k, k_live = up_to(first, end, PAIRS)
        n, p = split(k // slots, layer.parents)
        i = k % slots * layer.child_types + which
        g_V = vote_gradients(layer, trace, grads, n, p, i, c, k_live[:, None] & c_live[None, :], SIDE, SHARED)
        M = layer.poses + child_at(layer, n, p, i)[:, None, None] * POSE + x * SIDE
        for y in tl.static_range(SIDE):
            grad = tl.sum(g_V * tl.load(M + y), axis=0)
            grad = tl.sum(tl.reshape(grad, (TYPES, ROWS, SIDE)), axis=1, keep_dims=True)
            g_W += tl.where(row == y, grad, 0.0)
    pairs = ((part.to(tl.int64) * tl.num_programs(0) + which) * layer.types + c)[:, None, None]
    place = g_transforms + pairs * (SIDE * SIDE) + row * SIDE + tl.arange(0, SIDE)[None, None, :]
    tl.store(place, g_W, mask=c_live[:, None, None])
