"""How kernels are compiled: by Triton at their first launch; with TRITON_INTERPRET=1 they run in its interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import triton
from triton import knobs

Piece = TypeVar("Piece", bound=Callable[..., Any])

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether kernels run in the interpreter, which takes tensors of any device; as it was when they were defined."""


def compiled(function: Callable[..., Any]) -> Any:
    """Make a function a kernel, to be launched as `kernel[grid](...)`."""
    return triton.jit(function)


def inlined(function: Piece) -> Piece:
    """Make a function a piece of kernels; just Python to the interpreter, which would wrap each call at great cost."""
    return function if INTERPRETED else cast("Piece", triton.jit(function))
