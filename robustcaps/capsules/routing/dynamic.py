"""Dynamic routing between vector capsules (Sabour, Frosst, Hinton, NIPS 2017).

Symbols: n samples, i children (layer L) with poses u_i, j parents (layer L+1) with poses v_j = squash(s_j).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from robustcaps.capsules.routing.competition import log_coupling
from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition
from robustcaps.capsules.routing.vote_products import vote_agreement, weighted_sum

Update = Literal["increment", "assign"]

TINY = 1e-12
"""Added to |s|^2 before the logarithm: the logit of an empty capsule is finite and its gradient 0."""


def squash(s: Tensor) -> Tensor:
    """Return v = |s|^2 / (1 + |s|^2) * s / |s| along the last dimension (eq. 1); 0 with gradient 0 at s = 0."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s * (length / (1 + length.square()))


def squashed_length(s: Tensor) -> Tensor:
    """Return |squash(s)| = |s|^2 / (1 + |s|^2), smooth everywhere."""
    squared = s.square().sum(dim=-1)
    return squared / (1 + squared)


def length_logit(s: Tensor) -> Tensor:
    """Return logit(|squash(s)|) = log |s|^2, which does not saturate."""
    return torch.log(s.square().sum(dim=-1) + TINY)


def vector_votes(poses: Tensor, transforms: Tensor) -> Tensor:
    """Return the votes u_hat_{j|i} = W_ij u_i (n, parents, children, out) of poses u (n, children, in).

    `transforms` is (children, parents, out, in), or (parents, out, in) if all children share it.
    """
    equation = "nih,joh->njio" if transforms.ndim == 3 else "nih,ijoh->njio"
    return torch.einsum(equation, poses, transforms).contiguous()


def dynamic_routing(votes: Tensor, *, iterations: int, update: Update = "increment") -> Tensor:
    """Return s_j (n, parents, out), the parents before `squash`, from votes (n, parents, children, out).

    b = 0; repeat: c_i = softmax_j(b_i); s_j = sum_i c_ij u_hat_{j|i}; v_j = squash(s_j); b_ij += <u_hat_{j|i}, v_j>.
    With `update="assign"` the last step is b_ij = <u_hat_{j|i}, v_j>, a soft k-means step under the inner product.
    """
    return _average_votes(votes, coupling_coefficients(votes, iterations=iterations, update=update))


def coupling_coefficients(votes: Tensor, *, iterations: int, update: Update = "increment") -> Tensor:
    """Return c_ij (n, parents, children) of the last iteration of `dynamic_routing`; 1 / parents with one iteration."""
    b = votes.new_zeros(votes.shape[:3])
    for _ in range(iterations - 1):
        s = _average_votes(votes, b.softmax(dim=1))
        agreement = (votes @ squash(s).unsqueeze(3)).squeeze(3)
        b = agreement if update == "assign" else b + agreement
    return b.softmax(dim=1)


def _average_votes(votes: Tensor, c: Tensor) -> Tensor:
    """Return s_j = sum_i c_ij u_hat_{j|i}."""
    return (c.unsqueeze(2) @ votes).squeeze(2)


def dynamic_window_routing(
    votes: Tensor,
    wiring: Wiring,
    *,
    iterations: int,
    update: Update = "increment",
    competition: Competition = "field",
) -> tuple[Tensor, Tensor]:
    """Return s_j (n, P, C, H) and c_ij (n, P, C, I) of votes (n, P, C, I, H) for the parents of P windows.

    The iterations of `dynamic_routing`, with the softmax over all parents that compete for a child.
    """
    b = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        c = log_coupling(b, wiring, competition).exp()
        s = weighted_sum(c, votes)
        if iteration < iterations - 1:
            agreement = vote_agreement(votes, squash(s))
            b = agreement if update == "assign" else b + agreement
    return s, c
