"""Self-routing: each child decides by itself how to divide its vote (Hahn, Pyeon, Kim, NeurIPS 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.capsules.routing.competition import log_coupling
from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition, in_windows
from robustcaps.capsules.routing.vote_products import weighted_sum

TINY = 1e-30
"""Smallest activation: its logarithm is finite, also in float32."""


def routing_logits(poses: Tensor, weights: Tensor, bias: Tensor, wiring: Wiring) -> Tensor:
    """Return b_ij = <A_ij, u_i> + b'_ij (n, P, C, I) of poses u (n, Q, B, H).

    `weights` A is (S, B, C, H) and `bias` b' (S, B, C), or both without S if all slots share them.
    """
    children = in_windows(poses, wiring.windows)
    equation = "npsbh,bch->npcsb" if weights.ndim == 3 else "npsbh,sbch->npcsb"
    own = bias.expand(wiring.windows.shape[1], *bias.shape[-2:]).permute(2, 0, 1)
    return (torch.einsum(equation, children, weights) + own).flatten(3)


def self_routing(
    votes: Tensor, activations: Tensor, logits: Tensor, wiring: Wiring, *, competition: Competition = "field"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return poses u_j (n, P, C, H), the log odds of a_j (n, P, C), and c_ij (n, P, C, I).

    c_i = softmax_j(b_i) of `logits` b_ij (n, P, C, I); S_j = sum_i c_ij a_i; u_j = sum_i c_ij a_i v_ij / S_j;
    a_j = S_j / sum_k S_k over the types k at the position of j. If those are all parents of its children, the
    denominator is sum_i a_i, as in the paper. There must be at least two types.
    """
    log_c = log_coupling(logits, wiring, competition)
    log_a = in_windows(activations.clamp_min(TINY).log(), wiring.windows).flatten(2).unsqueeze(2)
    log_r = log_c + log_a
    log_support = log_r.logsumexp(dim=-1)
    shares = (log_r - log_support.unsqueeze(-1)).exp()
    return weighted_sum(shares, votes), log_odds(log_support), log_c.exp()


def log_odds(log_support: Tensor) -> Tensor:
    """Return log(S_j / sum_{k != j} S_k) of log S (..., C), the logit of a share, which does not saturate."""
    types = log_support.shape[-1]
    itself = torch.eye(types, dtype=torch.bool, device=log_support.device)
    others = log_support.unsqueeze(-2).masked_fill(itself, float("-inf"))
    return log_support - others.logsumexp(dim=-1)
