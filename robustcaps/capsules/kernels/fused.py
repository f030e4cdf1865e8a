"""The interface that the fused kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Activation, Competition, Routed, Start


class RoutingConfig(NamedTuple):
    """Arguments of EM routing without a gradient."""

    wiring: Wiring
    inverse_temperature: Tensor
    variance_floor: float
    competition: Competition
    activation: Activation
    mean_momentum: float
    start: Start
    offsets: Tensor | None


def competitions_per_child(config: RoutingConfig) -> Tensor:
    """Return over how many groups of parents the assignments of a child each sum to 1 (Q,): one, or one per window."""
    copies = config.wiring.copies
    return copies.clamp_max(1) if config.competition == "field" else copies


def make_em_routing(kernels: type[torch.autograd.Function]) -> Callable[..., Routed]:
    """Return `routing.em_routing` computed by a function of (config, whether to keep a trace, *learned tensors)."""

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
        outputs = kernels.apply(RoutingConfig(wiring, **config), keep, *learned)  # type: ignore[no-untyped-call]
        mu, logits, variance, support = outputs
        return Routed(poses=mu, logits=logits, variance=variance, support=support)

    return em_routing
