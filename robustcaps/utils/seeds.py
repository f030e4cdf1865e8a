"""Derived seeds, and temporarily seeded torch generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*parts: int) -> int:
    """Return a distinct seed for each tuple of non-negative integers, e.g. (seed, epoch)."""
    return int(np.random.SeedSequence((len(parts), *parts)).generate_state(1)[0])


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generators of the CPU and of a device within a block, and restore them afterwards."""
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        current = torch.cuda.current_device()  # also initialises CUDA's generators
        generators.append(torch.cuda.default_generators[current if device.index is None else device.index])
    elif device is not None and device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())  # noqa: SLF001 (there is no public accessor)
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
