"""Routing by attention between the votes v_ij of children i for parents j; d = H is the size of a pose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.capsules.routing.competition import log_coupling
from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition
from robustcaps.capsules.routing.vote_products import vote_agreement, weighted_sum

TINY = 1e-12
"""Added to lengths before division and logarithm: an empty capsule is finite with gradient 0."""


def exponential_squash(s: Tensor) -> Tensor:
    """Return v = (1 - e^-|s|) s / |s| along the last dimension (Mazzia et al. 2021, eq. 2)."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    return s * (-torch.expm1(-length) / (length + TINY))


def exponential_squashed_length(s: Tensor) -> Tensor:
    """Return |v| = 1 - e^-|s|."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1)
    return -torch.expm1(-length)


def exponential_length_logit(s: Tensor) -> Tensor:
    """Return logit(|v|) = log(e^|s| - 1), which does not saturate."""
    length: Tensor = torch.linalg.vector_norm(s, dim=-1)
    return length + torch.log(-torch.expm1(-length) + TINY)


def self_attention_routing(
    votes: Tensor,
    wiring: Wiring,
    *,
    prior: Tensor | None = None,
    competition: Competition = "field",
    uniform: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return s_j (n, P, C, H) and c_ij (n, P, C, I) of votes (n, P, C, I, H) (Mazzia, Salvetti, Chiaberge 2021).

    c_ij = softmax_j( <v_ij, sum_k v_kj> / sqrt(d) ); s_j = sum_i (c_ij + b_ij) v_ij, without iterations. The learned
    `prior` b_ij (C, I) is not part of the coefficients returned, which sum to 1 over competing parents. With `uniform`
    the attention is switched off: all competing parents have equal c_ij.
    """
    agreement = votes.new_zeros(votes.shape[:-1])
    if not uniform:
        total = weighted_sum(torch.ones_like(agreement), votes)
        agreement = vote_agreement(votes, total) / votes.shape[-1] ** 0.5
    c = log_coupling(agreement, wiring, competition).exp()
    return weighted_sum(c if prior is None else c + prior, votes), c


def inverted_attention_routing(
    votes: Tensor,
    wiring: Wiring,
    *,
    iterations: int,
    gain: Tensor,
    bias: Tensor,
    competition: Competition = "field",
) -> tuple[Tensor, Tensor]:
    """Return p_j (n, P, C, H) and c_ij (n, P, C, I) of votes (n, P, C, I, H) (Tsai et al., ICLR 2020).

    p_j = 0; repeat: c_ij = softmax_j( <p_j, v_ij> / sqrt(d) ); p_j = LayerNorm( sum_i c_ij v_ij ) with the learned
    `gain` and `bias` (H,). The first coefficients are uniform. Layers are routed one after the other, not concurrently.
    """
    pose = votes.shape[-1]
    agreement = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        c = log_coupling(agreement, wiring, competition).exp()
        p = F.layer_norm(weighted_sum(c, votes), (pose,), gain, bias)
        if iteration < iterations - 1:
            agreement = vote_agreement(votes, p) / pose**0.5
    return p, c
