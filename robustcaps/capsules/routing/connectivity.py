"""Connectivity between capsule layers: which children a parent sees, and which parents compete for a child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Wiring:
    """P parent positions, each with a window of S slots on Q child positions."""

    windows: Tensor
    """(P, S), int64: the child position in each slot."""
    rivals: Tensor
    """(G, M), int64: groups of slots p*S+s whose parents compete, padded with P*S.

    A group holds the slots that contain one child position, so that G = Q; corner children have fewer. Only with
    `pairing = "stride-1"` of `convolution` it is another set of slots.
    """
    groups: Tensor | None = None
    """(P, S), int64: the group of each slot; None if it is the child position."""

    @property
    def owners(self) -> Tensor:
        """(P, S): the group of each slot."""
        return self.windows if self.groups is None else self.groups

    @property
    def copies(self) -> Tensor:
        """(G,): the number of slots in each group, i.e. of windows that contain each child position."""
        return (self.rivals < self.windows.numel()).sum(dim=1)


Pairing = Literal["child", "stride-1"]
"""Which slots compete: those of the same child, or, as in the authors' released code, window i and slot a belong
together where i + a is equal, also if the stride is not 1."""


def convolution(size: int, kernel: int, stride: int, *, pairing: Pairing = "child") -> Wiring:
    """Connect a size x size grid of children by the windows of a convolution without padding."""
    windows = _windows(size, kernel, stride)
    if pairing == "child":
        return _make_wiring(windows, size * size)
    paired = (size - kernel) // stride + kernel
    return _make_wiring(windows, paired * paired, _windows(paired, kernel, 1))


def _windows(size: int, kernel: int, stride: int) -> Tensor:
    """Return the positions of a size x size grid in each window (P, kernel*kernel)."""
    grid = torch.arange(size * size).view(size, size)
    return grid.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(-1, kernel * kernel)


def fully_connected(positions: int) -> Wiring:
    """Connect all child positions to a single parent position."""
    windows = torch.arange(positions).view(1, -1)
    return _make_wiring(windows, positions)


def _make_wiring(windows: Tensor, count: int, groups: Tensor | None = None) -> Wiring:
    """Complete the wiring by the slots of every group; by default, of every child position."""
    slots = windows.numel()
    group, order = (windows if groups is None else groups).flatten().sort(stable=True)
    copies = torch.bincount(group, minlength=count)
    rank = torch.arange(slots) - (copies.cumsum(0) - copies)[group]
    rivals = torch.full((count, int(copies.max())), slots)
    rivals[group, rank] = order
    return Wiring(windows=windows, rivals=rivals, groups=groups)
