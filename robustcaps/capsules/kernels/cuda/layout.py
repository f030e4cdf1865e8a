"""Memory layout of the wiring for the kernels, computed once per wiring."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from robustcaps.capsules.kernels.fused import RoutingConfig
from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition, Start, first_parents


class TritonLayout(NamedTuple):
    """The wiring and the initial assignments as in `TritonLayer`."""

    windows: Tensor
    rivals: Tensor
    copies: Tensor
    child_slots: Tensor
    child_copies: Tensor
    uniform: Tensor


def layout_of(config: RoutingConfig, *, positions: int, types: int) -> TritonLayout:
    """Return the layout of a layer with that many child positions and parent types."""
    wiring = config.wiring
    return _cached_layout(
        wiring.windows, wiring.rivals, wiring.groups, config.competition, config.start, positions, types
    )


@functools.lru_cache(maxsize=16)
def _cached_layout(
    windows: Tensor,
    rivals: Tensor,
    groups: Tensor | None,
    competition: Competition,
    start: Start,
    positions: int,
    types: int,
) -> TritonLayout:
    """Compute the layout once per wiring; tensors are hashed by identity and never modified."""
    wiring = Wiring(windows=windows, rivals=rivals, groups=groups)
    parents = first_parents(wiring, types=types, competition=competition, start=start)
    grouped, copies = rivals.int().contiguous(), wiring.copies.int()
    by_child = (grouped, copies) if groups is None else _slots_by_child(windows, positions)
    return TritonLayout(windows.int().contiguous(), grouped, copies, *by_child, parents.float().reciprocal())


def _slots_by_child(windows: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Return the slots that contain each child position (Q, M'), padded, and their number (Q,)."""
    slots = windows.numel()
    contained = windows.flatten() == torch.arange(positions, device=windows.device)[:, None]
    copies = contained.sum(dim=1)
    numbers = torch.arange(slots, device=windows.device)
    padded = torch.where(contained, numbers, slots).sort(dim=1).values
    return padded[:, : int(copies.max())].int().contiguous(), copies.int()
