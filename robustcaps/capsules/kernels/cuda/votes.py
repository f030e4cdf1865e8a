"""Indexing and vote computation shared by the kernels; votes are recomputed from poses and transforms.

A tile holds E children, each by its sample n, a parent position p and its place i in that window, and C types c of
parents. n and p are (E,) or, if all share them, (1,); values of parents are (E or 1, C) or (E or 1, C, H).
Out-of-range indices are clamped, so that loads need no masks, only weights and stores do.
n has 64 bits, because a batch may have more than 2^31 assignments; it is never divided, which would be slow.
"""

from __future__ import annotations

import triton.language as tl

from robustcaps.capsules.kernels.cuda.jit import inlined
from robustcaps.capsules.kernels.cuda.layer import POSE_SIZE, TritonLayer

POSE = tl.constexpr(POSE_SIZE)


@inlined
def up_to(first: tl.tensor, end: tl.tensor, LENGTH: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the indices first, first+1, ... (LENGTH,), clamped below the end, and which of them are valid."""
    index = first + tl.arange(0, LENGTH)
    return tl.minimum(index, end - 1), index < end


@inlined
def split(index: tl.tensor, size: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the sample n of an index into (n, size), and the index within it."""
    return (index // size).to(tl.int64), index % size


@inlined
def as_tile(x: tl.tensor) -> tl.tensor:
    """Return a single index as (1,)."""
    return x + tl.arange(0, 1)


@inlined
def slot_at(layer: TritonLayer, p: tl.tensor, i: tl.tensor) -> tl.tensor:
    """Return the slot p*S+s of child i of window p."""
    return p * layer.slots + i // layer.child_types


@inlined
def position_at(layer: TritonLayer, p: tl.tensor, i: tl.tensor) -> tl.tensor:
    """Return the child position q of child i of window p."""
    return tl.load(layer.windows + slot_at(layer, p, i))


@inlined
def child_at(layer: TritonLayer, n: tl.tensor, p: tl.tensor, i: tl.tensor) -> tl.tensor:
    """Return the index of child i of window p in (n, Q, B)."""
    return (n * layer.positions + position_at(layer, p, i)) * layer.child_types + i % layer.child_types


@inlined
def parent_at(layer: TritonLayer, n: tl.tensor, p: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Return the indices of parents in (n, P, C), as (E or 1, C)."""
    return (n * layer.parents + p)[:, None] * layer.types + c[None, :]


@inlined
def pair_at(layer: TritonLayer, n: tl.tensor, p: tl.tensor, i: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Return the indices of pairs of child and parent in (n, P, I, C), as (E, C)."""
    return ((n * layer.parents + p) * layer.children + i)[:, None] * layer.types + c[None, :]


@inlined
def load_poses(values: tl.tensor, parent: tl.tensor) -> tl.tensor:
    """Return the H values of each parent: (E or 1, C, H)."""
    return tl.load(values + parent[:, :, None] * POSE + tl.arange(0, POSE)[None, None, :])


@inlined
def store_poses(values: tl.tensor, parent: tl.tensor, x: tl.tensor, live: tl.tensor) -> None:
    """Set the H values of each valid parent."""
    tl.store(values + parent[:, :, None] * POSE + tl.arange(0, POSE)[None, None, :], x, mask=live[:, :, None])


@inlined
def transforms_at(
    layer: TritonLayer, i: tl.tensor, c: tl.tensor, SIDE: tl.constexpr, SHARED: tl.constexpr
) -> tl.tensor:
    """Return the indices of the transforms of pairs, as (E, C, 1)."""
    which = i % layer.child_types if SHARED else i
    return (which[:, None] * layer.types + c[None, :])[:, :, None] * (SIDE * SIDE)


@inlined
def offsets_at(layer: TritonLayer, i: tl.tensor) -> tl.tensor:
    """Return the offsets of the votes of children, (E, 1, H)."""
    slot = (i // layer.child_types)[:, None, None]
    return tl.load(layer.offsets + slot * POSE + tl.arange(0, POSE)[None, None, :])


@inlined
def add_votes(
    layer: TritonLayer,
    start: tl.tensor,
    n: tl.tensor,
    p: tl.tensor,
    i: tl.tensor,
    c: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
) -> tl.tensor:
    """Return start + M_i W_ij (E, C, H): each row of a pose times each column of a transform."""
    h = tl.arange(0, POSE)[None, None, :]
    row = layer.poses + child_at(layer, n, p, i)[:, None, None] * POSE + h // SIDE * SIDE
    column = layer.transforms + transforms_at(layer, i, c, SIDE, SHARED) + h % SIDE
    votes = start
    for y in tl.static_range(SIDE):
        votes = tl.fma(tl.load(row + y), tl.load(column + y * SIDE), votes)
    return votes


@inlined
def relative_votes(
    layer: TritonLayer,
    centre: tl.tensor,
    n: tl.tensor,
    p: tl.tensor,
    i: tl.tensor,
    c: tl.tensor,
    SIDE: tl.constexpr,
    SHARED: tl.constexpr,
) -> tl.tensor:
    """Return V_ij - V_0 (E, C, H). V_0 is subtracted first, so that large common parts cancel before rounding."""
    return add_votes(layer, offsets_at(layer, i) - centre, n, p, i, c, SIDE, SHARED)


@inlined
def assigned(
    layer: TritonLayer,
    assignments: tl.tensor,
    n: tl.tensor,
    p: tl.tensor,
    i: tl.tensor,
    c: tl.tensor,
    live: tl.tensor,
    FIRST: tl.constexpr,
) -> tl.tensor:
    """Return r_ij = R_ij a_i (E, C); 0 for invalid pairs."""
    a = tl.load(layer.activations + child_at(layer, n, p, i))[:, None]
    if FIRST:
        R = tl.where(live, tl.load(layer.uniform + slot_at(layer, p, i))[:, None], 0.0)
    else:
        R = tl.load(assignments + pair_at(layer, n, p, i, c), mask=live, other=0.0)
    return R * a


@inlined
def log_sigmas(variance: tl.tensor, floor: float) -> tl.tensor:
    """Return sum_h log sigma^h (E or 1, C) from sigma^2 without the floor."""
    return 0.5 * tl.sum(tl.log(variance + floor), axis=2)
