"""Statistics of EM routing per sample, to monitor the training of matrix capsules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition, Step, in_windows

SATURATION_MARGIN = 0.01
"""Activations this close to 0 or 1 count as saturated: they pass hardly any gradient."""


def routing_statistics(step: Step, wiring: Wiring, competition: Competition) -> dict[str, Tensor]:
    """Return statistics (n,) of an EM iteration: mean activation, share of saturated activations, sigma, entropy.

    sigma (mean and minimum) includes the variance floor; the entropy is `assignment_entropy`.
    """
    activations = step.parents.activations.flatten(1)
    sigma = step.parents.variance.sqrt().flatten(1)
    saturated = (activations < SATURATION_MARGIN) | (activations > 1 - SATURATION_MARGIN)
    return {
        "activation": activations.mean(dim=1),
        "saturated": saturated.to(sigma).mean(dim=1),
        "sigma": sigma.mean(dim=1),
        "sigma_min": sigma.amin(dim=1),
        "entropy": assignment_entropy(step.assignments, wiring, competition),
    }


def assignment_entropy(assignments: Tensor, wiring: Wiring, competition: Competition) -> Tensor:
    """Return -sum_j R_ij log R_ij / log(number of j), averaged over all children i in any window (n,).

    j runs over the parents that compete for i: those of all windows that contain it (`field`), of each window
    separately (`position`), or of each type separately (`type`). 1 is uniform, also for a child with a single parent; 0
    assigns a child to one of many.
    """
    if competition == "type":
        return _entropy_per_type(assignments, wiring)
    n, _, types, _ = assignments.shape
    in_window = torch.special.entr(assignments).sum(dim=2).view(n, wiring.windows.numel(), -1)
    if competition == "position":
        parents = torch.full_like(wiring.windows.flatten(), types)
        entropy = in_window
    else:
        in_any_window = wiring.copies > 0
        parents = types * wiring.copies[in_any_window]
        entropy = in_windows(F.pad(in_window, (0, 0, 0, 1)), wiring.rivals[in_any_window]).sum(dim=2)
    maximum = parents.to(entropy).log().unsqueeze(-1)
    return torch.where(maximum > 0, entropy / maximum, 1.0).mean(dim=(1, 2))


def _entropy_per_type(assignments: Tensor, wiring: Wiring) -> Tensor:
    """Return the entropy (n,) of the competition `type`: over the windows of a child, averaged over children and types.

    Children that only one window contains have no competition and do not count; without any others it is 1.
    """
    n, positions, types, children = assignments.shape
    slots = wiring.windows.shape[1]
    by_slot = assignments.view(n, positions, types, slots, children // slots).transpose(2, 3).flatten(1, 2)
    several = wiring.copies > 1
    if not bool(several.any()):
        return assignments.new_ones(n)
    rivals = in_windows(F.pad(by_slot, (0, 0, 0, 0, 0, 1)), wiring.rivals[several])
    shares = rivals / rivals.sum(dim=2, keepdim=True).clamp_min(torch.finfo(rivals.dtype).tiny)
    maximum = wiring.copies[several].to(shares).log()[:, None, None]
    entropy: Tensor = torch.special.entr(shares).sum(dim=2) / maximum
    return entropy.mean(dim=(1, 2, 3))
