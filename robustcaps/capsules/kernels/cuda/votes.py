"""What the kernels share: where things lie, and the votes, formed again from poses and transforms wherever needed.

A tile holds E pairs of a parent position j = n*P + p and a child i of its window, all with the same types c of parents.
j is (E,) or, where all share it, (1,); i is (E,) and c is (C,); values of parents are (E or 1, C) or (E or 1, C, H).
Indices beyond an end are set to the last: loads need no masks, only weights and stores do.
"""

from __future__ import annotations

import triton.language as tl

from robustcaps.capsules.kernels.cuda.jit import inlined
from robustcaps.capsules.kernels.cuda.layer import POSE_SIZE, Layer

POSE = tl.constexpr(POSE_SIZE)


@inlined
def up_to(first: tl.tensor, end: tl.tensor, LENGTH: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the indices first, first+1, ... (LENGTH,) below the end, and which of them are real."""
    index = first + tl.arange(0, LENGTH)
    return tl.minimum(index, end - 1), index < end


@inlined
def position_at(j: tl.tensor) -> tl.tensor:
    """Return a single parent position as (1,); 64 bits, as a batch may have more than 2^31 assignments."""
    return j.to(tl.int64) + tl.arange(0, 1)


@inlined
def child_at(layer: Layer, j: tl.tensor, i: tl.tensor) -> tl.tensor:
    """Return where child i of parent position j lies in (n, Q, B)."""
    slot = j % layer.parents * layer.slots + i // layer.child_types
    q = tl.load(layer.windows + slot)
    return (j // layer.parents * layer.positions + q) * layer.child_types + i % layer.child_types


@inlined
def parent_at(layer: Layer, j: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Return where parents lie in (n, P, C), as (E or 1, C)."""
    return j[:, None] * layer.types + c[None, :]


@inlined
def pair_at(layer: Layer, j: tl.tensor, i: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Return where pairs of a child and a parent lie in (n, P, I, C), as (E, C)."""
    return (j * layer.children + i)[:, None] * layer.types + c[None, :]


@inlined
def load_poses(values: tl.tensor, parent: tl.tensor) -> tl.tensor:
    """Return the H values of each parent: (E or 1, C, H)."""
    return tl.load(values + parent[:, :, None] * POSE + tl.arange(0, POSE)[None, None, :])


@inlined
def store_poses(values: tl.tensor, parent: tl.tensor, x: tl.tensor, live: tl.tensor) -> None:
    """Set the H values of each parent that is real."""
    tl.store(values + parent[:, :, None] * POSE + tl.arange(0, POSE)[None, None, :], x, mask=live[:, :, None])


@inlined
def transforms_at(layer: Layer, i: tl.tensor, c: tl.tensor, SIDE: tl.constexpr, SHARED: tl.constexpr) -> tl.tensor:
    """Return where the transforms of pairs lie, as (E, C, 1)."""
    which = i % layer.child_types if SHARED else i
    return (which[:, None] * layer.types + c[None, :])[:, :, None] * (SIDE * SIDE)


@inlined
def add_votes(
    layer: Layer, start: tl.tensor, j: tl.tensor, i: tl.tensor, c: tl.tensor, SIDE: tl.constexpr, SHARED: tl.constexpr
) -> tl.tensor:
    """Return start + M_i W_ij (E, C, H): each row of a pose times each column of a transform."""
    h = tl.arange(0, POSE)[None, None, :]
    row = layer.poses + child_at(layer, j, i)[:, None, None] * POSE + h // SIDE * SIDE
    column = layer.transforms + transforms_at(layer, i, c, SIDE, SHARED) + h % SIDE
    votes = start
    for y in tl.static_range(SIDE):
        votes = tl.fma(tl.load(row + y), tl.load(column + y * SIDE), votes)
    return votes


@inlined
def offsets_at(layer: Layer, i: tl.tensor) -> tl.tensor:
    """Return what is added to the votes of children (E, 1, H)."""
    slot = (i // layer.child_types)[:, None, None]
    return tl.load(layer.offsets + slot * POSE + tl.arange(0, POSE)[None, None, :])


@inlined
def relative_votes(
    layer: Layer, centre: tl.tensor, j: tl.tensor, i: tl.tensor, c: tl.tensor, SIDE: tl.constexpr, SHARED: tl.constexpr
) -> tl.tensor:
    """Return V_ij - V_0 (E, C, H). V_0 goes first into the sum: what is large in both cancels before it is rounded."""
    return add_votes(layer, offsets_at(layer, i) - centre, j, i, c, SIDE, SHARED)


@inlined
def assigned(
    layer: Layer, assignments: tl.tensor, j: tl.tensor, i: tl.tensor, c: tl.tensor, live: tl.tensor, FIRST: tl.constexpr
) -> tl.tensor:
    """Return r_ij = R_ij a_i (E, C); 0 where a pair is not real."""
    child = child_at(layer, j, i)
    a = tl.load(layer.activations + child)[:, None]
    if FIRST:  # loaded for every type, as R is, since a tile's loads decide which thread gets what
        place = layer.uniform + (child // layer.child_types % layer.positions)[:, None] + 0 * c[None, :]
    else:
        place = assignments + pair_at(layer, j, i, c)
    return tl.load(place, mask=live, other=0.0) * a


@inlined
def log_sigmas(variance: tl.tensor, floor: tl.tensor) -> tl.tensor:
    """Return sum_h log sigma^h (E or 1, C) from sigma^2 without the floor."""
    return 0.5 * tl.sum(tl.log(variance + floor), axis=2)
