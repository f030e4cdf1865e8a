"""Connectivity between capsule layers: which children a parent sees, and which parents compete for a child."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Wiring:
    """P parent positions, each with a window of S slots on Q child positions."""

    windows: Tensor
    """(P, S), int64: the child position in each slot."""
    rivals: Tensor
    """(Q, M), int64: the slots p*S+s that contain a child position, padded with P*S (corner children have fewer)."""

    @property
    def copies(self) -> Tensor:
        """(Q,): the number of windows that contain each child position."""
        return (self.rivals < self.windows.numel()).sum(dim=1)


def convolution(size: int, kernel: int, stride: int) -> Wiring:
    """Connect a size x size grid of children by the windows of a convolution without padding."""
    grid = torch.arange(size * size).view(size, size)
    windows = grid.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(-1, kernel * kernel)
    return _make_wiring(windows, positions=size * size)


def fully_connected(positions: int) -> Wiring:
    """Connect all child positions to a single parent position."""
    return _make_wiring(torch.arange(positions).view(1, -1), positions=positions)


def _make_wiring(windows: Tensor, positions: int) -> Wiring:
    """Complete the wiring by the inverse of the windows: the slots of every child position."""
    slots = windows.numel()
    children, order = windows.flatten().sort(stable=True)
    copies = torch.bincount(children, minlength=positions)
    rank = torch.arange(slots) - (copies.cumsum(0) - copies)[children]
    rivals = torch.full((positions, int(copies.max())), slots)
    rivals[children, rank] = order
    return Wiring(windows=windows, rivals=rivals)
