"""Samples shared out among threads.

Plain threads that sleep when they wait, so that a busy machine is not slowed down by spinning, and that know nothing of
OpenMP, with which PyTorch works. They stay for the next call, since to start and end one takes a quarter of a
millisecond; after a fork, which leaves threads behind, the child starts its own.
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

PARTS = 16
"""Into how many parts a batch is split at most: the same for any number of threads, so that sums over parts are too."""


def split(samples: int) -> Ints:
    """Return where each part of the samples begins, and where the last one ends."""
    parts = min(samples, PARTS)
    return np.array([samples * part // parts for part in range(parts + 1)] if parts else [0])


GRAIN = 100_000
"""Assignments per thread that are worth waking one: about a millisecond of work."""


def run_parts(work: Callable[[int, int], None], parts: int, size: int) -> None:
    """Call work(first part, last part) once on each of the threads that PyTorch may use, this one among them.

    One long call each: threads that come back for more wait for each other to give Python back. `size` is how many
    assignments are computed in all: few are not shared out.
    """
    threads = max(1, min(torch.get_num_threads(), parts, 1 + size // GRAIN))
    (own, *others) = itertools.pairwise(parts * thread // threads for thread in range(threads + 1))
    if not others:
        work(*own)
        return
    ends: list[Future[None]] = []
    try:
        ends.extend(_pool().submit(work, *share) for share in others)
        work(*own)
    finally:
        wait(ends)  # they write into arrays of the caller
    for end in ends:
        end.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads that help those that call: no more are ever started than are at work at once."""
    return ThreadPoolExecutor(PARTS - 1, thread_name_prefix="robustcaps")


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_pool.cache_clear)
