"""Per-sample random numbers, hashed from (seed, stream, sample, element): independent of batches and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed 64-bit integer


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for a batch; `indices` (n,) are the samples' positions in their dataset."""

    seed: int
    indices: Tensor

    def select(self, rows: Tensor) -> Self:
        """Return the random numbers of some of the batch's samples, which stay the same."""
        return replace(self, indices=self.indices[rows])

    def uniform(self, shape: tuple[int, ...], *, stream: int = 0) -> Tensor:
        """Return uniform numbers in [0,1), (n, *shape); streams are independent."""
        return self.uniform_streams(shape, (stream,))[0]

    def uniform_streams(self, shape: tuple[int, ...], streams: Sequence[int]) -> Tensor:
        """Return the uniform numbers of several streams at once, (streams, n, *shape)."""
        seed, numbers = (torch.tensor(each, device=self.indices.device) for each in (self.seed, tuple(streams)))
        elements = torch.arange(1, math.prod(shape) + 1, device=self.indices.device)
        keys = _mix(_mix(seed + _GOLDEN) + numbers * _GOLDEN)
        samples = _mix(keys[:, None] + (self.indices + 1) * _GOLDEN)
        bits = _mix(samples[:, :, None] + elements * _GOLDEN)
        fraction = _shift(bits, 40).to(torch.float32) * 2.0**-24  # 24 bits fill a float32 exactly
        return fraction.reshape(len(streams), len(self.indices), *shape)

    def normal(self, shape: tuple[int, ...], *, stream: int = 0) -> Tensor:
        """Return standard normal numbers, (n, *shape), by the Box-Muller transform."""
        pairs = self.uniform((2, *shape), stream=stream)
        radius = torch.sqrt(-2.0 * torch.log1p(-pairs[:, 0]))
        return radius * torch.cos(2.0 * math.pi * pairs[:, 1])

    def integers(self, high: int, shape: tuple[int, ...] = (), *, stream: int = 0) -> Tensor:
        """Return uniform integers in 0..high-1, (n, *shape)."""
        return (self.uniform(shape, stream=stream) * high).long().clamp_max(high - 1)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right logically (torch's shift of int64 is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Hash 64-bit integers by the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    x = (x ^ _shift(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift(x, 31)
