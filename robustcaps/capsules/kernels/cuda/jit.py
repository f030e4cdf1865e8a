"""Decorators that compile kernels with Triton; with TRITON_INTERPRET=1 they run in its interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import triton
from triton import knobs

Function = TypeVar("Function", bound=Callable[..., Any])

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether kernels run in the interpreter, which takes tensors of any device; fixed when they are defined."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a kernel, which is launched as `kernel[grid](...)`."""
    return triton.jit(function)


def inlined(function: Function) -> Function:
    """Compile a function into the kernels that call it; plain Python in the interpreter, as wrapped calls are slow."""
    return function if INTERPRETED else cast("Function", triton.jit(function))
