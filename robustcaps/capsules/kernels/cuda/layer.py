"""Data structures of the kernels. Symbols as in `routing.em`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

POSE_SIZE = 16
"""H: a pose is a 4x4 matrix or a vector."""


class TritonLayer(NamedTuple):
    """One layer and its children. All tensors are contiguous; indices are int32, the rest float32."""

    poses: Tensor
    """M (n, Q, B, H)."""
    activations: Tensor
    """a (n, Q, B)."""
    transforms: Tensor
    """W (S, B, C, side, side), or (B, C, side, side) if all slots share it."""
    offsets: Tensor
    """(S, H), added to the votes of a slot."""
    windows: Tensor
    """(P, S): the child position in each slot."""
    rivals: Tensor
    """(G, M): the slots p*S+s of each group whose parents compete, padded; see `Wiring.rivals`."""
    copies: Tensor
    """(G,): the number of slots in each group."""
    child_slots: Tensor
    """(Q, M'): the slots that contain each child position, padded; `rivals`, unless groups are not child positions."""
    child_copies: Tensor
    """(Q,): the number of slots that contain each child position."""
    uniform: Tensor
    """Initial R (P, S): 1 / (number of parents that a child is first divided among)."""
    total_support: Tensor
    """sum_j S_j over the layer (n,), the total activation of its children. Only `mixture` reads it."""
    beta_a: Tensor
    """(C,)."""
    beta_u: Tensor
    """(C,)."""
    samples: int
    positions: int
    """Q."""
    groups: int
    """G."""
    max_copies: int
    """M."""
    max_child_copies: int
    """M'."""
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


class TritonTrace(NamedTuple):
    """Intermediate results for the backward pass: of all iterations (T, ...), or of a single one (...)."""

    assignments: Tensor
    """R of all iterations but the first (T-1, n, P, I, C)."""
    centre: Tensor
    """V_0 (n, P, C, H), the first child's votes, to which votes and means are relative in all iterations."""
    mean: Tensor
    """mu - V_0 (T, n, P, C, H): near 0 if votes agree, so that no precision is lost if they agree far from 0."""
    variance: Tensor
    """sigma^2 without the floor (T, n, P, C, H)."""
    support: Tensor
    """S = sum_i r_ij (T, n, P, C)."""
    logits: Tensor
    """z (T, n, P, C)."""
    scale: Tensor
    """lambda (T,)."""


class TritonParents(NamedTuple):
    """The routed parents, laid out as in `Routed`, or the loss's gradients by them."""

    poses: Tensor
    """mu (n, P, C, H)."""
    logits: Tensor
    """(n, P, C)."""
    variance: Tensor
    """sigma^2 (n, P, C, H), the floor included."""
    support: Tensor
    """(n, P, C)."""


class TritonGradients(NamedTuple):
    """Gradients of the intermediate results: of all iterations (T, ...), or of a single one (...)."""

    assignments: Tensor
    """g_r of each iteration, then g_L of the log a_j p_ij that its R came from (T, n, P, I, C)."""
    mean: Tensor
    """g_mean = (1 - m) g_mu, m the momentum (T, n, P, C, H)."""
    variance: Tensor
    """g_var (T, n, P, C, H)."""
    beta_a: Tensor
    """Of beta_a, per parent (n, P, C), summed over the iterations."""
    beta_u: Tensor
    """Of beta_u, per parent (n, P, C), summed over the iterations."""
    total_support: Tensor
    """Of `TritonLayer.total_support`, per parent (n, P, C), summed over the iterations."""
