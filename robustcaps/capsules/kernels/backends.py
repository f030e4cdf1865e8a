"""Selection of the routing backend: a fused kernel where one is applicable, else the definition in PyTorch."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from robustcaps.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from robustcaps.capsules.routing.connectivity import Wiring

Backend = Literal["auto", "torch", "numba", "triton"]


class KernelBackend(NamedTuple):
    """A fused kernel: the device of its tensors, its module, and how to install its library."""

    device: str
    module: str
    install: str


KERNELS = {
    "numba": KernelBackend("cpu", "robustcaps.capsules.kernels.cpu.em", "pip install 'robustcaps[fast]'"),
    "triton": KernelBackend(
        "cuda", "robustcaps.capsules.kernels.cuda.em", "3.4 or newer, on Linux: pip install 'robustcaps[gpu]'"
    ),
}

_DEFINITION_ONLY: ContextVar[bool] = ContextVar("definition_only", default=False)


@contextmanager
def definition_only() -> Iterator[None]:
    """Route by the definition in PyTorch inside the context, where no backend is required by name."""
    token = _DEFINITION_ONLY.set(True)
    try:
        yield
    finally:
        _DEFINITION_ONLY.reset(token)


def _is_definition_only() -> bool:
    """Return whether the context asks for the definition; torch.compile, which cannot trace the variable, does not."""
    return not torch.compiler.is_compiling() and _DEFINITION_ONLY.get()


def fused_em_routing(
    backend: Backend,
    wiring: Wiring,
    learned: Sequence[Tensor],
    fixed: Sequence[Tensor | None],
    rules: Mapping[str, Any],
) -> Callable[..., Any] | None:
    """Return the kernel for these inputs, or None for the definition in PyTorch.

    'auto' uses the kernel of the inputs' device if it is applicable; 'numba' (CPU) and 'triton' (CUDA) require theirs.
    `learned`: poses, activations, transforms, beta_a, beta_u; `fixed`: inverse_temperature, offsets;
    `rules`: competition, activation, mean_momentum, start.
    """
    if backend == "torch" or (backend == "auto" and _is_definition_only()):
        return None
    library = _find_library(learned[0].device) if backend == "auto" else backend
    if library is None:
        return None
    if library not in KERNELS:
        raise UserError(
            f"em_routing: unknown backend '{library}'. {did_you_mean(library, ('auto', 'torch', *KERNELS))}"
        )
    obstacle = _find_obstacle(library, wiring, learned, fixed, rules)
    kernel = None if obstacle else _load_kernel(library)
    if backend != "auto" and kernel is None:
        reason = obstacle or f"{library} is not installed ({KERNELS[library].install})"
        raise UserError(f"em_routing: backend '{library}' cannot be used: {reason}. Choose 'auto' or 'torch'.")
    return kernel


def _find_library(device: torch.device) -> str | None:
    """Return the library whose kernel runs on a device."""
    return next((library for library, kernel in KERNELS.items() if kernel.device == device.type), None)


def _find_obstacle(
    library: str,
    wiring: Wiring,
    learned: Sequence[Tensor],
    fixed: Sequence[Tensor | None],
    rules: Mapping[str, Any],
) -> str | None:
    """Return why the kernel cannot handle these inputs, or None."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return "PyTorch is compiling and cannot trace it"
    if any(x is not None and x.requires_grad for x in fixed):
        return "it has no gradient for offsets and inverse_temperature"
    if unsupported := _find_unsupported_rules(wiring, rules):
        return unsupported
    floats = [x for x in (*learned, *fixed) if x is not None]
    device = KERNELS[library].device
    for x in floats:
        if x.dtype != torch.float32 or not (x.device.type == device or (library == "triton" and _is_interpreted())):
            return f"it takes float32 tensors on {device}, not {x.dtype} on {x.device}"
    if len({x.device for x in (*floats, wiring.windows, wiring.rivals, wiring.owners)}) > 1:
        return "inputs and wiring must be on the same device"
    matching = _shapes_match(wiring, learned, fixed)
    return None if matching else "it takes poses of size 16, 4x4 or 16x16 transforms, and shapes exactly as documented"


def _find_unsupported_rules(wiring: Wiring, rules: Mapping[str, Any]) -> str | None:
    """Return which combination of rules the kernels do not know, or None."""
    if rules["activation"] == "mixture" and (rules["competition"] == "type" or rules["start"] == "types"):
        return "activation 'mixture' takes assignments that sum to 1 over all parents"
    if wiring.groups is not None and rules["competition"] != "type":
        return "groups of slots other than children need competition 'type'"
    return None


def _is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels (TRITON_INTERPRET=1), which takes tensors of any device."""
    try:
        return bool(importlib.import_module("robustcaps.capsules.kernels.cuda.jit").INTERPRETED)
    except ImportError:
        return False


def _shapes_match(wiring: Wiring, learned: Sequence[Tensor], fixed: Sequence[Tensor | None]) -> bool:
    """Return whether all shapes match, because the kernels themselves check none of them.

    The range of the windows is only checked on a CPU; reading it from a GPU would synchronise.
    """
    poses, _, transforms, *_ = learned
    if poses.ndim != 4 or transforms.ndim not in {4, 5}:
        return False
    n, positions, child_types, _ = poses.shape
    slots, types, side = wiring.windows.shape[1], transforms.shape[-3], transforms.shape[-1]
    iterations = fixed[0].numel() if fixed[0] is not None else 0
    shapes = (
        (n, positions, child_types, 16),
        (n, positions, child_types),
        (slots, child_types, types, side, side)[5 - transforms.ndim :],
        (types,),
        (types,),
        (iterations,),
        (slots, 16),
    )
    return (
        all(x is None or x.shape == shape for x, shape in zip((*learned, *fixed), shapes, strict=True))
        and side in {4, 16}
        and min(child_types, types, iterations, wiring.windows.numel()) > 0
        and (wiring.groups is not None or len(wiring.rivals) == positions)
        and (poses.device.type != "cpu" or positions > int(wiring.windows.max()))
    )


@functools.cache
def _load_kernel(library: str) -> Callable[..., Any] | None:
    """Import the kernel; without its library, warn once and return None."""
    try:
        module = importlib.import_module(KERNELS[library].module)
    except ImportError:
        warnings.warn(
            f"{library} is not installed, so EM routing falls back to PyTorch, which is many times slower "
            f"({KERNELS[library].install}).",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    kernel: Callable[..., Any] = module.em_routing
    return kernel
