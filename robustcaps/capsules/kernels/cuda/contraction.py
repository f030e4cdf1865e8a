"""The last backward pass: g_V of all half-steps at once, contracted with the transforms and with the poses.

No atomic additions: every sum belongs to one program, so a result does not depend on who comes first.
"""

from __future__ import annotations

import triton.language as tl

from robustcaps.capsules.kernels.cuda.forward import EMPTY
from robustcaps.capsules.kernels.cuda.jit import compiled, inlined
from robustcaps.capsules.kernels.cuda.layer import Layer, Pulls, Trace
from robustcaps.capsules.kernels.cuda.votes import (
    POSE,
    as_tile,
    child_at,
    load_poses,
    pair_at,
    parent_at,
    position_at,
    relative_votes,
    split,
    transforms_at,
    up_to,
)


@inlined
def vote_gradients(
    layer: Layer,
    trace: Trace,
    pulls: Pulls,
    n: tl.tensor,
    p: tl.tensor,
    i: tl.tensor,
    c: tl.tensor,
    live: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
) -> tl.tensor:
    """Return g_V (E, C, H): r/S (g_mu + 2 g_var d) of every M-step, less g_L d / sigma^2 of every E-step."""
    votes = relative_votes(layer, load_poses(trace.centre, parent_at(layer, n, p, c)), n, p, i, c, SIDE, SHARED)
    a = tl.load(layer.activations + child_at(layer, n, p, i))[:, None]
    uniform = tl.load(layer.uniform + position_at(layer, p, i))[:, None]
    g_votes = tl.full(votes.shape, 0.0, tl.float32)
    for t in range(layer.iterations):
        parent = parent_at(layer, n + t * layer.samples, p, c)
        if t == 0:
            R = tl.where(live, uniform, 0.0)
        else:
            pair = pair_at(layer, n + (t - 1) * layer.samples, p, i, c)
            R = tl.load(trace.assignments + pair, mask=live, other=0.0)
        weight = (R * a / (tl.load(trace.support + parent) + EMPTY))[:, :, None]
        slope = 2.0 * weight * load_poses(pulls.variance, parent)
        if t + 1 < layer.iterations:
            pair = pair_at(layer, n + (t + 1) * layer.samples, p, i, c)
            g_L = tl.load(pulls.assignments + pair, mask=live, other=0.0)
            slope -= g_L[:, :, None] / (load_poses(trace.variance, parent) + layer.floor)
        d = votes - load_poses(trace.mean, parent)
        g_votes += weight * load_poses(pulls.mean, parent) + slope * d
    return g_votes


@compiled
def pull_back_poses(
    layer: Layer,
    trace: Trace,
    pulls: Pulls,
    g_poses: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    CHILDREN: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """Of V = M W, at one child position: g_M = g_V W^T, added over all parents of each child."""
    ROWS: tl.constexpr = POSE // SIDE
    n, q = split(tl.program_id(0), layer.positions)
    b, b_live = up_to(tl.program_id(1) * CHILDREN, layer.child_types, CHILDREN)
    g_M = tl.full((CHILDREN, ROWS, SIDE), 0.0, tl.float32)
    column = tl.arange(0, SIDE)[None, None, :]
    z = tl.arange(0, POSE)[None, None, :] % SIDE
    for copy in range(tl.load(layer.copies + q)):
        slot = tl.load(layer.rivals + q * layer.most_copies + copy)
        p = as_tile(slot // layer.slots)
        i = slot % layer.slots * layer.child_types + b
        for first in range(0, layer.types, TYPES):
            c, c_live = up_to(first, layer.types, TYPES)
            live = b_live[:, None] & c_live[None, :]
            g_V = vote_gradients(layer, trace, pulls, as_tile(n), p, i, c, live, SIDE, SHARED)
            W = layer.transforms + transforms_at(layer, i, c, SIDE, SHARED) + z
            for y in tl.static_range(SIDE):
                pull = tl.sum(g_V * tl.load(W + y * SIDE), axis=1)
                pull = tl.sum(tl.reshape(pull, (CHILDREN, ROWS, SIDE)), axis=2, keep_dims=True)
                g_M += tl.where(column == y, pull, 0.0)
    child = ((n * layer.positions + q) * layer.child_types + b)[:, None, None]
    place = g_poses + child * POSE + tl.arange(0, ROWS)[None, :, None] * SIDE + column
    tl.store(place, g_M, mask=b_live[:, None, None])


@compiled
def pull_back_transforms(
    layer: Layer,
    trace: Trace,
    pulls: Pulls,
    g_transforms: tl.tensor,
    span: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
    PAIRS: tl.constexpr,
    TYPES: tl.constexpr,
) -> None:
    """Of V = M W, for the children of one transform: g_W = M^T g_V, added over all windows of one part of the batch.

    A part has `span` windows (or slots, where they share transforms); g_transforms (parts, ...) keeps them apart.
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
        g_V = vote_gradients(layer, trace, pulls, n, p, i, c, k_live[:, None] & c_live[None, :], SIDE, SHARED)
        M = layer.poses + child_at(layer, n, p, i)[:, None, None] * POSE + x * SIDE
        for y in tl.static_range(SIDE):
            pull = tl.sum(g_V * tl.load(M + y), axis=0)
            pull = tl.sum(tl.reshape(pull, (TYPES, ROWS, SIDE)), axis=1, keep_dims=True)
            g_W += tl.where(row == y, pull, 0.0)
    pairs = ((part.to(tl.int64) * tl.num_programs(0) + which) * layer.types + c)[:, None, None]
    place = g_transforms + pairs * (SIDE * SIDE) + row * SIDE + tl.arange(0, SIDE)[None, None, :]
    tl.store(place, g_W, mask=c_live[:, None, None])
