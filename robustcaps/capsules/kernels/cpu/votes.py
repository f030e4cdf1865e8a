"""Data structures and vote computation shared by the forward and the backward kernel.

Symbols as in `routing.em`; parents come in K blocks of 16 lanes, and lanes beyond the C types are empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from robustcaps.capsules.kernels.cpu.jit import inlined
from robustcaps.capsules.kernels.cpu.lanes import (
    LANES,
    LN2,
    Lanes,
    exponent,
    fma,
    load,
    log_mantissa,
    mantissa,
    splat,
    store,
    zero_where_less,
)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
FourLanes = tuple[Lanes, Lanes, Lanes, Lanes]
Place = tuple[int, int, int, int, int, int]
"""Sample, child position, child type, child of the transforms, block of parents, child in its window."""

POSE = 16
"""H: a pose is a 4x4 matrix, or a vector."""
SMALLEST_NORMAL = 1.1754943508222875e-38
"""The smallest normal float32."""
COST, MEAN_COST, MIXTURE = 0, 1, 2
"""The activation rules, in the order of `routing.Activation`."""


class NumbaLayer(NamedTuple):
    """One layer and its children."""

    poses: Floats
    """M (n, Q, B, H)."""
    activations: Floats
    """a (n, Q, B)."""
    transforms: Floats
    """W (4 or 16 columns, S*B, K, 4 or 16 rows, 16 lanes), with B for S*B if all slots share it."""
    offsets: Floats
    """(S, H), added to the votes of a slot; (1, H) if it is the same for all."""
    windows: Ints
    """(P, S): the child position in each slot."""
    groups: Ints
    """(G, M): the slots p*S+s whose parents compete for the same children, padded with P*S."""
    uniform: Floats
    """Initial R (P, I, K, 16 lanes); 0 in empty lanes."""
    beta_a: Floats
    """(C,)."""
    beta_u: Floats
    """(C,)."""
    scales: Floats
    """lambda (T,)."""
    totals: Floats
    """(n,): the sum of r_ij over all children and parents, which is the same in all iterations.

    Only computed for `MIXTURE`; 0 for the other rules.
    """
    floor: float
    rule: int
    """The activation rule: `COST`, `MEAN_COST` or `MIXTURE`."""
    momentum: float
    """m of mu_t = (1 - m) mean + m mu_(t-1)."""
    by_type: bool
    """Whether the windows of each type of parent compete, instead of all parents of a group."""
    vectors: tuple[()] | tuple[bool]
    """Non-empty if poses are vectors; encoded in the type so that each kind gets a kernel of its own."""


class NumbaTrace(NamedTuple):
    """Intermediate results for the backward pass; one row per sample, or a single one if there is no backward pass."""

    assignments: Floats
    """R of all iterations but the first (rows, T-1, P, I, K, 16 lanes)."""
    mean: Floats
    """mu - V_0, relative to the first child's vote (rows, T, P, K, H, 16 lanes)."""
    variance: Floats
    """sigma^2 without the floor (rows, T, P, K, H, 16 lanes)."""
    support: Floats
    """sum_i r_ij (rows, T, P, K, 16 lanes)."""
    logits: Floats
    """(rows, T, P, K, 16 lanes)."""


class InputGradients(NamedTuple):
    """Accumulated gradients of the inputs; all start at 0."""

    poses: Floats
    """(n, Q, B, H)."""
    activations: Floats
    """(n, Q, B)."""
    transforms: Floats
    """As `NumbaLayer.transforms`, or of length 0 if not needed."""
    beta_a: Floats
    """(C,)."""
    beta_u: Floats
    """(C,)."""
    totals: Floats
    """(n,)."""


class NumbaGradients(NamedTuple):
    """Gradients of the intermediate results of one sample; overwritten by the next."""

    assignments: Floats
    """g_r of each iteration, then g_L of the log a_j p_ij that its R came from (T, P, I, K, 16 lanes)."""
    mean: Floats
    """g_mu (T, P, K, H, 16 lanes)."""
    variance: Floats
    """g_var (T, P, K, H, 16 lanes)."""
    support: Floats
    """g_S of the current block (16 lanes)."""
    logits: Floats
    """g_z of the current block (16 lanes)."""
    votes: Floats
    """g_V of the current child (H, 16 lanes)."""
    by_parent: Floats
    """Each parent's contribution to g_M of the current child (H, 16 lanes)."""
    weights: Floats
    """r/S of the current child (T, 16 lanes)."""
    inverse: Floats
    """1 / sigma^2 of the current block (T, H, 16 lanes)."""
    volumes: Floats
    """sum_h log (sigma^h)^2 of the current block, as `set_volumes` stores it (2, 16 lanes); only for `COST`."""
    carry: Floats
    """m g_mu, which mu of the former iteration gets (P, K, H, 16 lanes); only with momentum."""


class VoteWindow(NamedTuple):
    """The votes of one window of children for one block of parents; overwritten by the next."""

    centre: Floats
    """V_0, the first child's votes (H, 16 lanes)."""
    shift: Floats
    """Added to the votes of the current slot: offsets - V_0 (H, 16 lanes)."""
    votes: Floats
    """V_i - V_0 (I, H, 16 lanes): near 0 if votes agree, so that no precision is lost if they agree far from 0."""
    r: Floats
    """r_ij = R_ij a_i (I, 16 lanes)."""


@inlined
def slot_shape(layer: NumbaLayer, R: Floats) -> tuple[int, int, int, int]:
    """Return the shape (P*S, B, K, 16 lanes) of R (P, I, K, 16 lanes) that `NumbaLayer.groups` indexes."""
    return layer.windows.size, layer.poses.shape[2], R.shape[2], LANES


@inlined
def slots_share(layer: NumbaLayer) -> bool:
    """Return whether all slots have the same transforms."""
    return bool(layer.transforms.shape[1] == layer.poses.shape[2])


@inlined
def offset(layer: NumbaLayer, s: int, h: int) -> Lanes:
    """Return the offset of one component of a slot's votes, in all lanes."""
    return splat(layer.offsets[min(s, len(layer.offsets) - 1), h])


@inlined
def count_rivals(layer: NumbaLayer, group: Ints) -> int:
    """Return the number of slots in a group without its padding."""
    count = 0
    while count < len(group) and group[count] < layer.windows.size:
        count += 1
    return count


@inlined
def fill_window(layer: NumbaLayer, R: Floats, n: int, p: int, k: int, window: VoteWindow) -> None:
    """Compute the votes V_ij = M_i W_ij of a window's children for one block of parents, and their weights r_ij."""
    slots, child_types = layer.windows.shape[1], layer.poses.shape[2]
    shared = slots_share(layer)
    for h in range(POSE):
        store(window.shift, (h,), offset(layer, 0, h))
    compute_votes(layer, window, (n, layer.windows[p, 0], 0, 0, k, 0))
    for h in range(POSE):
        store(window.centre, (h,), load(window.votes, (0, h)))
    for s in range(slots):
        q = layer.windows[p, s]
        for h in range(POSE):
            store(window.shift, (h,), offset(layer, s, h) - load(window.centre, (h,)))
        for b in range(child_types):
            i = s * child_types + b
            store(window.r, (i,), load(R, (p, i, k)) * splat(layer.activations[n, q, b]))
            compute_votes(layer, window, (n, q, b, b if shared else i, k, i))


@inlined
def compute_votes(layer: NumbaLayer, window: VoteWindow, place: Place) -> None:
    """Set the shifted votes of child i."""
    if len(layer.vectors) > 0:
        _transform_vector(layer.poses, layer.transforms, window, place)
    else:
        _transform_matrix(layer.poses, layer.transforms, window, place)


@inlined
def _transform_vector(poses: Floats, transforms: Floats, window: VoteWindow, place: Place) -> None:
    """Set the votes of child i: its pose times each column z of its transforms."""
    n, q, b, w, k, i = place
    for z in range(POSE):
        vote = load(window.shift, (z,))
        for y in range(POSE):
            vote = fma(splat(poses[n, q, b, y]), load(transforms, (z, w, k, y)), vote)
        store(window.votes, (i, z), vote)


@inlined
def _transform_matrix(poses: Floats, transforms: Floats, window: VoteWindow, place: Place) -> None:
    """Set the votes of child i: each row of its pose times each column z of its transforms."""
    n, q, b, w, k, i = place
    pose = poses[n, q, b]
    row0, row1, row2, row3 = _row(pose, 0), _row(pose, 4), _row(pose, 8), _row(pose, 12)
    for z in range(4):
        w0, w1 = load(transforms, (z, w, k, 0)), load(transforms, (z, w, k, 1))
        w2, w3 = load(transforms, (z, w, k, 2)), load(transforms, (z, w, k, 3))
        column = (w0, w1, w2, w3)
        store(window.votes, (i, z), _inner(row0, column, load(window.shift, (z,))))
        store(window.votes, (i, 4 + z), _inner(row1, column, load(window.shift, (4 + z,))))
        store(window.votes, (i, 8 + z), _inner(row2, column, load(window.shift, (8 + z,))))
        store(window.votes, (i, 12 + z), _inner(row3, column, load(window.shift, (12 + z,))))


@inlined
def _row(pose: Floats, h: int) -> FourLanes:
    """Return four components of a pose, each in all lanes."""
    return splat(pose[h]), splat(pose[h + 1]), splat(pose[h + 2]), splat(pose[h + 3])


@inlined
def _inner(a: FourLanes, b: FourLanes, start: Lanes) -> Lanes:
    """Return start + sum_y a_y b_y."""
    return fma(a[3], b[3], fma(a[2], b[2], fma(a[1], b[1], fma(a[0], b[0], start))))


@inlined
def store_four(array: Floats, h: int, values: FourLanes) -> None:
    """Set array[h] to array[h + 3]."""
    store(array, (h,), values[0])
    store(array, (h + 1,), values[1])
    store(array, (h + 2,), values[2])
    store(array, (h + 3,), values[3])


@inlined
def set_volumes(volumes: Floats, variance: Floats, floor: float) -> None:
    """Set `volumes` (2, 16 lanes) to n and l with sum_h log sigma_h^2 = n log 2 + l, for sigma^2 (H, 16 lanes) + floor.

    One logarithm of the product of the mantissas replaces sixteen. n is large but exact and l small, so that costs
    can be subtracted without loss (`half_log_volume`). NaN if a variance is not finite, 0 or subnormal.
    """
    n, m, nothing, normal = splat(0.0), splat(1.0), splat(0.0), splat(1.0)
    for h in range(POSE):
        square = load(variance, (h,)) + splat(floor)
        n, m = n + exponent(square), m * mantissa(square)
        nothing += square - square
        normal = zero_where_less(normal, square, splat(SMALLEST_NORMAL))
    store(volumes, (0,), n + exponent(m))
    store(volumes, (1,), log_mantissa(mantissa(m)) + nothing / normal)


@inlined
def half_log_volume(volumes: Floats, lane: int) -> float:
    """Return sum_h log sigma_h of one parent, as a float64."""
    log_volume: float = LN2 * volumes[0, lane] + volumes[1, lane]
    return 0.5 * log_volume


@inlined
def inverse_variance(variance: Floats, h: int, floor: float) -> Lanes:
    """Return 1 / sigma^2 of one component, including the floor."""
    return splat(1.0) / (load(variance, (h,)) + splat(floor))
