"""How routing fares, in a few numbers per sample: what to watch while a network of matrix capsules is trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.capsules.routing.connectivity import Wiring
from robustcaps.capsules.routing.em import Competition, Step, in_windows

SATURATED = 0.01
"""An activation this near to 0 or 1 passes hardly any gradient."""


def routing_signs(step: Step, wiring: Wiring, competition: Competition) -> dict[str, Tensor]:
    """Return the signs (n,) of an EM iteration: mean activation and share of saturated ones, sigma, entropy.

    sigma (mean and least) includes the variance floor; the entropy is `assignment_entropy`.
    """
    activations = step.parents.activations.flatten(1)
    sigma = step.parents.variance.sqrt().flatten(1)
    saturated = (activations < SATURATED) | (activations > 1 - SATURATED)
    return {
        "activation": activations.mean(dim=1),
        "saturated": saturated.to(sigma).mean(dim=1),
        "sigma": sigma.mean(dim=1),
        "sigma_min": sigma.amin(dim=1),
        "entropy": assignment_entropy(step.assignments, wiring, competition),
    }


def assignment_entropy(assignments: Tensor, wiring: Wiring, competition: Competition) -> Tensor:
    """Return -sum_j R_ij log R_ij / log(number of j), the mean over all children i that are seen (n,).

    j runs over the parents that compete for i: those of all windows that hold it (`field`), or of each window by itself
    (`position`). 1 is uniform, as for a child with one parent only, which has no choice; 0 is all to one of many.
    """
    n, _, types, _ = assignments.shape
    in_window = torch.special.entr(assignments).sum(dim=2).view(n, wiring.windows.numel(), -1)
    if competition == "position":
        parents = torch.full_like(wiring.windows.flatten(), types)
        entropy = in_window
    else:
        seen = wiring.copies > 0
        parents = types * wiring.copies[seen]
        entropy = in_windows(F.pad(in_window, (0, 0, 0, 1)), wiring.rivals[seen]).sum(dim=2)
    most = parents.to(entropy).log().unsqueeze(-1)
    return torch.where(most > 0, entropy / most, 1.0).mean(dim=(1, 2))
