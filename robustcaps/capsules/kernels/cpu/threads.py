"""Samples shared out among threads.

Plain threads that end with the call: they sleep when they wait, so that a busy machine is not slowed down by spinning,
know nothing of OpenMP, with which PyTorch works, and leave nothing behind that a fork could break.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

PARTS = 16
"""Into how many parts a batch is split at most: the same for any number of threads, so that sums over parts are too."""


def split(samples: int) -> list[tuple[int, int]]:
    """Return the first and the last sample (exclusive) of each part."""
    parts = min(samples, PARTS)
    bounds = [samples * part // parts for part in range(parts + 1)] if parts else [0]
    return list(itertools.pairwise(bounds))


def run_parts(work: Callable[[int], None], parts: int) -> None:
    """Call work(part) for every part, on as many threads as PyTorch may use."""
    threads = min(torch.get_num_threads(), parts)
    if threads <= 1:
        for part in range(parts):
            work(part)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(parts)):
            pass
