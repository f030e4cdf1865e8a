"""Which backend routes: the definition in PyTorch, or a kernel where one fits."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from robustcaps.errors import UserError

if TYPE_CHECKING:
    from robustcaps.capsules.routing.wiring import Wiring

Backend = Literal["auto", "torch", "numba"]


def fused_em_routing(
    backend: Backend, wiring: Wiring, learned: Sequence[Tensor], fixed: Sequence[Tensor | None]
) -> Callable[..., Any] | None:
    """Return the kernel for these inputs, or None where PyTorch is to route.

    'auto' takes the kernel where it can, 'numba' insists on it.
    `learned`: poses, activations, transforms, beta_a, beta_u; `fixed`: inverse_temperature, offsets.
    """
    if backend == "torch":
        return None
    obstacle = _obstacle(wiring, learned, fixed)
    kernel = None if obstacle else _load_kernel()
    if backend == "numba" and kernel is None:
        reason = obstacle or "numba is not installed (pip install 'robustcaps[fast]')"
        raise UserError(f"em_routing: backend 'numba' cannot be used: {reason}. Choose 'auto' or 'torch'.")
    return kernel


def _obstacle(wiring: Wiring, learned: Sequence[Tensor], fixed: Sequence[Tensor | None]) -> str | None:
    """Return why the kernel cannot work on these inputs, if so."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return "PyTorch is compiling, and cannot see into it"
    if any(x is not None and x.requires_grad for x in fixed):
        return "it has no gradient for offsets and inverse_temperature"
    for x in (*learned, *fixed):
        if x is not None and (x.device.type != "cpu" or x.dtype != torch.float32):
            return f"it works on float32 on the CPU, not on {x.dtype} on {x.device}"
    return None if _fits(wiring, learned, fixed) else "it takes 4x4 poses and shapes exactly as documented"


def _fits(wiring: Wiring, learned: Sequence[Tensor], fixed: Sequence[Tensor | None]) -> bool:
    """Tell whether all shapes fit together: the kernel itself looks at none of them."""
    poses, _, transforms, *_ = learned
    if poses.ndim != 4 or transforms.ndim not in {4, 5}:
        return False
    n, positions, child_types, _ = poses.shape
    slots, types = wiring.windows.shape[1], transforms.shape[-3]
    iterations = fixed[0].numel() if fixed[0] is not None else 0
    shapes = (
        (n, positions, child_types, 16),
        (n, positions, child_types),
        (slots, child_types, types, 4, 4)[5 - transforms.ndim :],
        (types,),
        (types,),
        (iterations,),
        (slots, 16),
    )
    return (
        all(x is None or x.shape == shape for x, shape in zip((*learned, *fixed), shapes, strict=True))
        and min(child_types, types, iterations, wiring.windows.numel()) > 0
        and len(wiring.rivals) == positions > int(wiring.windows.max())
    )


@functools.cache
def _load_kernel() -> Callable[..., Any] | None:
    """Import the kernel; without numba, say once what that costs."""
    try:
        module = importlib.import_module("robustcaps.capsules.kernels.em")
    except ImportError:
        warnings.warn(
            "EM routing runs in PyTorch, many times slower: numba is not installed (pip install 'robustcaps[fast]').",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    kernel: Callable[..., Any] = module.em_routing
    return kernel
