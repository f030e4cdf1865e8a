"""Randomness that repeats and stays where it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*parts: int) -> int:
    """Return a seed of its own for each tuple of non-negative numbers, e.g. (seed, epoch)."""
    return int(np.random.SeedSequence((len(parts), *parts)).generate_state(1)[0])


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators of the CPU and of a device for a block (dropout, initial weights); then put them back."""
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        current = torch.cuda.current_device()  # this also makes CUDA's generators
        generators.append(torch.cuda.default_generators[current if device.index is None else device.index])
    elif device is not None and device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())  # noqa: SLF001 (torch offers no other way to it)
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
