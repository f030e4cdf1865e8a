"""Parallel processing of samples in threads.

Plain threads sleep while they wait, so they do not slow down a busy machine by spinning, and they do not interfere with
PyTorch's OpenMP. They are kept for the next call, because starting one takes a quarter of a millisecond; a forked
process starts its own.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch

from robustcaps.capsules.kernels.cpu.votes import Ints

MAX_PARTS = 16
"""Parts of a batch, independent of the number of threads so that sums over parts are, too."""


def split(samples: int) -> Ints:
    """Return the bounds of the parts: where each begins, and where the last one ends."""
    parts = min(samples, MAX_PARTS)
    return np.array([samples * part // parts for part in range(parts + 1)] if parts else [0])


MIN_ASSIGNMENTS_PER_THREAD = 100_000
"""About a millisecond of work; less is not worth waking a thread."""


def run_parts(work: Callable[[int, int], None], parts: int, size: int) -> None:
    """Call work(first part, last part) once on each thread that PyTorch may use, including this one.

    A single long call per thread avoids contention for the GIL. `size` is the total number of assignments, which limits
    the number of threads.
    """
    threads = max(1, min(torch.get_num_threads(), parts, 1 + size // MIN_ASSIGNMENTS_PER_THREAD))
    (own, *others) = itertools.pairwise(parts * thread // threads for thread in range(threads + 1))
    if not others:
        work(*own)
        return
    futures: list[Future[None]] = []
    try:
        futures.extend(_pool().submit(work, *bounds) for bounds in others)
        work(*own)
    finally:
        wait(futures)  # they write into arrays of the caller
    for future in futures:
        future.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Return the pool of helper threads, which are started on demand."""
    return ThreadPoolExecutor(MAX_PARTS - 1, thread_name_prefix="robustcaps")


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
