"""What the fused kernels share: how they are called, and what routing depends on without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Activation, Competition, Routed


class RuntimeConfig(NamedTuple):
    """What routing depends on without a gradient."""

    wiring: Wiring
    inverse_temperature: Tensor
    variance_floor: float
    competition: Competition
    activation: Activation
    offsets: Tensor | None


def times_given(config: RuntimeConfig) -> Tensor:
    """Return how often the children of each position (Q,) are given away: once, or once in every window."""
    copies = config.wiring.copies
    return copies.clamp_max(1) if config.competition == "field" else copies


def routed_by(kernels: type[torch.autograd.Function]) -> Callable[..., Routed]:
    """Return `routing.em_routing` as done by kernels: a function of (config, keep a trace, the learned tensors)."""

    def em_routing(
        poses: Tensor,
        activations: Tensor,
        transforms: Tensor,
        wiring: Wiring,
        *,
        beta_a: Tensor,
        beta_u: Tensor,
        **config: Any,
    ) -> Routed:
        learned = (poses, activations, transforms, beta_a, beta_u)
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in learned)
        found = kernels.apply(RuntimeConfig(wiring, **config), keep, *learned)  # type: ignore[no-untyped-call]
        mu, logits, variance, support = found
        return Routed(poses=mu, logits=logits, variance=variance, support=support)

    return em_routing
