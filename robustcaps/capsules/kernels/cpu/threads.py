"""Samples shared out among threads.

Plain threads that end with the call: they sleep when they wait, so that a busy machine is not slowed down by spinning,
know nothing of OpenMP, with which PyTorch works, and leave nothing behind that a fork could break.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
"""Assignments per thread that are worth starting one: about a millisecond of work."""


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
    with ThreadPoolExecutor(len(others)) as pool:
        ends = [pool.submit(work, *share) for share in others]
        work(*own)
        for end in ends:
            end.result()
