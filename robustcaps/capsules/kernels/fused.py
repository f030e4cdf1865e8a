"""The interface that the fused kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Activation, Competition, Routed, Start

KernelObserver = Callable[[Callable[..., Any], tuple[Tensor, ...]], Any]
"""Gets a kernel, as a function of its learned tensors, and these; returns the kernel's results."""
_OBSERVER: ContextVar[KernelObserver | None] = ContextVar("kernel_observer", default=None)


@contextmanager
def observing_kernels(observer: KernelObserver) -> Iterator[None]:
    """Run all kernels inside the context through an observer, because they leave torch for their work."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


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
        def run(*learned: Tensor) -> Any:
            keep = torch.is_grad_enabled() and any(x.requires_grad for x in learned)
            return kernels.apply(RoutingConfig(wiring, **config), keep, *learned)  # type: ignore[no-untyped-call]

        learned = (poses, activations, transforms, beta_a, beta_u)
        observer = None if torch.compiler.is_compiling() else _OBSERVER.get()  # torch.compile cannot trace it
        mu, logits, variance, support = run(*learned) if observer is None else observer(run, learned)
        return Routed(poses=mu, logits=logits, variance=variance, support=support)

    return em_routing
