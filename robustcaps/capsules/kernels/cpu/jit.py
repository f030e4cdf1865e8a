"""Decorators that compile kernels with Numba: without the GIL, and cached on disk where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import overload as numba_overload

from robustcaps.capsules.kernels.cpu.cache import NUMBA_CONFIG, kernel_cache_directory

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""No reference counting (`_nrt`): callers own all arrays and kernels allocate none; counting would dominate."""


def inlined(function: Kernel) -> Kernel:
    """Compile a function into each kernel that calls it: passing tuples of arrays would cost more than its work.

    It must not return an array, because arrays are not reference-counted here.
    """
    return cast("Kernel", numba.njit(**OPTIONS, forceinline=True)(function))


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel at its first call, and cache it on disk for the current sources of all kernels."""
    directory = kernel_cache_directory()
    if directory is not None:
        try:
            with _numba_cache_directory(directory):
                kernel = numba.njit(**OPTIONS, cache=True)(function)
        except RuntimeError:  # Numba found no place for its cache
            pass
        else:
            # Elsewhere (NUMBA_CACHE_LOCATOR_CLASSES) a cache may be outdated without Numba noticing it.
            if Path(kernel.stats.cache_path).is_relative_to(directory):
                return cast("Kernel", kernel)
    return cast("Kernel", numba.njit(**OPTIONS)(function))


@contextmanager
def _numba_cache_directory(directory: Path) -> Iterator[None]:
    """Let Numba choose this cache directory for functions decorated meanwhile."""
    previous = NUMBA_CONFIG.CACHE_DIR
    NUMBA_CONFIG.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        NUMBA_CONFIG.CACHE_DIR = previous


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a function that returns a signature and a generator of LLVM instructions into an instruction."""
    return cast("Callable[..., Any]", numba_intrinsic(function))


def overload(operation: Callable[..., Any]) -> Callable[[Kernel], Kernel]:
    """Define an operator for a type of ours."""
    return cast("Callable[[Kernel], Kernel]", numba_overload(operation))
