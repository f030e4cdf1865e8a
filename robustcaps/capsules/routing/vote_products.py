"""The two products of coefficients, votes and parents that every iteration of routing consists of.

Both are batched products of a matrix and a vector. PyTorch computes v^T A fast and A v slowly, and gradients of A as a
product of matrices instead of an outer product: these functions take a quarter of the time forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def weighted_sum(coefficients: Tensor, votes: Tensor) -> Tensor:
    """Return s_j = sum_i c_ij v_ij (n, P, C, H) of coefficients (n, P, C, I) and votes (n, P, C, I, H)."""
    s: Tensor = _WeightedSum.apply(coefficients, votes)  # type: ignore[no-untyped-call]
    return s


def vote_agreement(votes: Tensor, parents: Tensor) -> Tensor:
    """Return <v_ij, p_j> (n, P, C, I) of votes (n, P, C, I, H) and parents (n, P, C, H)."""
    agreement: Tensor = _Agreement.apply(votes, parents)  # type: ignore[no-untyped-call]
    return agreement


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(coefficients: Tensor, votes: Tensor) -> Tensor:
        return _combine(coefficients, votes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        coefficients, votes = ctx.saved_tensors
        by_coefficients, by_votes = ctx.needs_input_grad
        return (
            _project(votes, gradient) if by_coefficients else None,
            coefficients.unsqueeze(-1) * gradient.unsqueeze(-2) if by_votes else None,
        )


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(votes: Tensor, parents: Tensor) -> Tensor:
        return _project(votes, parents)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        votes, parents = ctx.saved_tensors
        by_votes, by_parents = ctx.needs_input_grad
        return (
            gradient.unsqueeze(-1) * parents.unsqueeze(-2) if by_votes else None,
            _combine(gradient, votes) if by_parents else None,
        )


def _combine(coefficients: Tensor, votes: Tensor) -> Tensor:
    return (coefficients.unsqueeze(-2) @ votes).squeeze(-2)


def _project(votes: Tensor, parents: Tensor) -> Tensor:
    return (parents.unsqueeze(-2) @ votes.transpose(-1, -2)).squeeze(-2)
