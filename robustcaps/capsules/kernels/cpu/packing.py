"""Memory layout of parameters and wiring for the kernels: parents in K blocks of 16 lanes, padded with 0."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.capsules.kernels.cpu.lanes import LANES
from robustcaps.capsules.kernels.cpu.votes import Floats, Ints


def as_array(x: Tensor) -> Floats:
    """Return a tensor as a contiguous array, without a copy if possible."""
    array: Floats = x.detach().contiguous().numpy()
    return array


def empty(*shape: int) -> Floats:
    """Return an uninitialised array, aligned to cache lines unlike NumPy's: vectors across two lines are slow."""
    array: Floats = torch.empty(shape, dtype=torch.float32).numpy()
    return array


def zeros(*shape: int) -> Floats:
    """Return an array of zeros, aligned like `empty`."""
    return as_array(torch.zeros(shape, dtype=torch.float32))


def count_blocks(types: int) -> int:
    """Return K, the number of blocks of lanes for that many types."""
    return -(-types // LANES)


def pack_transforms(transforms: Tensor) -> Tensor:
    """Return transforms (S, B, C, side, side) or (B, C, side, side) as (side, S*B or B, K, side, 16 lanes).

    Columns come first because the kernels process one at a time.
    """
    *_, child_types, types, side, _ = transforms.shape
    blocks = count_blocks(types)
    padded = F.pad(transforms.reshape(-1, child_types, types, side * side), (0, 0, 0, blocks * LANES - types))
    return padded.view(-1, child_types, blocks, LANES, side, side).permute(5, 0, 1, 2, 4, 3).flatten(1, 2)


def unpack_transforms(packed: Tensor, like: Tensor) -> Tensor:
    """Undo `pack_transforms`."""
    types = like.shape[-3]
    return packed.permute(1, 2, 4, 3, 0).flatten(1, 2)[:, :types].reshape(like.shape)


def uniform_assignments(windows: Ints, groups: Ints, parents: int, *, child_types: int, types: int) -> Floats:
    """Return the initial R (P, I, K, 16 lanes): 1 / (`parents` x number of slots in the group of a slot)."""
    positions = np.zeros(windows.size + 1, np.int64)
    positions[groups] = (groups < windows.size).sum(axis=1, keepdims=True)
    lanes = empty(windows.size, child_types, count_blocks(types) * LANES)
    lanes[..., types:] = 0.0
    lanes[..., :types] = 1.0 / (parents * positions[:-1, None, None])
    return lanes.reshape(len(windows), -1, count_blocks(types), LANES)
