"""What the kernels work on. Symbols as in `routing.em`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

POSE_SIZE = 16
"""H: a pose is a 4x4 matrix or a vector."""


class Layer(NamedTuple):
    """One layer and its children. All tensors are contiguous; indices are int32, the rest float32."""

    poses: Tensor
    """M (n, Q, B, H)."""
    activations: Tensor
    """a (n, Q, B)."""
    transforms: Tensor
    """W (S, B, C, side, side), or (B, C, side, side) where all slots share it."""
    offsets: Tensor
    """(S, H), added to the votes of a slot."""
    windows: Tensor
    """(P, S): the child position in each slot."""
    rivals: Tensor
    """(Q, M): the slots p*S+s that show a child position, then padding."""
    copies: Tensor
    """(Q,): how many slots show a child position."""
    uniform: Tensor
    """R at the start (Q,): 1 / (number of parents that compete for a child)."""
    whole: Tensor
    """sum_j S_j over the layer (n,): as R sums to 1, the activation of its children. Only `mixture` reads it."""
    beta_a: Tensor
    """(C,)."""
    beta_u: Tensor
    """(C,)."""
    samples: int
    positions: int
    """Q."""
    most_copies: int
    """M."""
    child_types: int
    """B."""
    parents: int
    """P."""
    slots: int
    """S."""
    children: int
    """I = S*B."""
    types: int
    """C."""
    iterations: int
    """T."""
    floor: float


class Trace(NamedTuple):
    """What routing leaves behind for the backward pass: of all iterations (T, ...), or of the one at hand (...)."""

    assignments: Tensor
    """R of all iterations but the first (T-1, n, P, I, C)."""
    centre: Tensor
    """V_0 (n, P, C, H), the first child's votes: what votes and means are relative to. No iteration changes it."""
    mean: Tensor
    """mu - V_0 (T, n, P, C, H): near 0 where votes agree, so that no digits are lost however far out they agree."""
    variance: Tensor
    """sigma^2 without the floor (T, n, P, C, H)."""
    support: Tensor
    """S = sum_i r_ij (T, n, P, C)."""
    logits: Tensor
    """z (T, n, P, C)."""
    scale: Tensor
    """lambda (T,)."""


class Parents(NamedTuple):
    """The routed parents, laid out as in `Routed`, or the loss's gradients by them."""

    poses: Tensor
    """mu (n, P, C, H)."""
    logits: Tensor
    """(n, P, C)."""
    variance: Tensor
    """sigma^2 (n, P, C, H), the floor included."""
    support: Tensor
    """(n, P, C)."""


class Pulls(NamedTuple):
    """The gradients of what routing computes on its way: of all iterations (T, ...), or of the one at hand (...)."""

    assignments: Tensor
    """g_r of each iteration, then g_L of the log a_j p_ij that its R came from (T, n, P, I, C)."""
    mean: Tensor
    """g_mu (T, n, P, C, H)."""
    variance: Tensor
    """g_var (T, n, P, C, H)."""
    beta_a: Tensor
    """Of each parent's own price (n, P, C), added up over the iterations."""
    beta_u: Tensor
    """The same."""
    whole: Tensor
    """Of `Layer.whole`, by way of each parent (n, P, C), added up over the iterations."""
