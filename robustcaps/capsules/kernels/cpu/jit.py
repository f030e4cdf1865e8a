"""How kernels are compiled: without the GIL, and kept on disk where a disk takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import overload as numba_overload

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""Arrays are the caller's and none is made: counting who holds them would take longer than much of the work."""


def inlined(function: Kernel) -> Kernel:
    """Compile a piece of a kernel into the one that calls it: passing tuples of arrays costs more than the piece.

    It can return no array: those are counted by nobody.
    """
    return cast("Kernel", numba.njit(**OPTIONS, forceinline=True)(function))


def compiled(function: Kernel) -> Kernel:
    """Compile a whole kernel at its first call, once per machine where its cache can be written.

    The cache knows the file of `function` only: after a change in another file of this folder, delete its `*.nbi`.
    """
    try:
        return cast("Kernel", numba.njit(**OPTIONS, cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write
        return cast("Kernel", numba.njit(**OPTIONS)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function that returns a signature and a generator of LLVM instructions into an instruction."""
    return cast("Callable[..., Any]", numba_intrinsic(function))


def overload(operation: Callable[..., Any]) -> Callable[[Kernel], Kernel]:
    """Give an operator a meaning for a type of ours."""
    return cast("Callable[[Kernel], Kernel]", numba_overload(operation))
