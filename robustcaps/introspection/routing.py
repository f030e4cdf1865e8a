"""What EM routing does to the votes for the class capsules: the numbers behind figure 2 of Hinton et al. (2018)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.capsules.routing import Step
from robustcaps.errors import UserError
from robustcaps.models.inference import inference


@runtime_checkable
class Routes(Protocol):
    """A model that shows its EM iterations, layer by layer; those of the class capsules are called 'classes'."""

    def routing_steps(self, images: Tensor) -> dict[str, list[Step]]:
        """Return the EM iterations of every capsule layer."""


def vote_distances(model: nn.Module, images: Tensor) -> pd.DataFrame:
    """Return how far each vote lies from each class capsule: a row per (sample, iteration, class, voting capsule).

    `distance` is |V_ij - mu_j|, Euclidean, to the mean that iteration t (from 1) has found; `weight` is the R_ij that
    this mean was found with. So votes are shared equally in iteration 1, as the paper describes its figure, and moved
    by one E-step before each further one; no E-step follows the last. The voter's activation a_i is not in the weight:
    the weights of a sample and an iteration sum to the number of voting capsules.
    """
    if not isinstance(model, Routes):
        raise UserError("no EM routing to look at: only matrix capsules have it.")
    with inference(model, images) as seen:  # one by one: all votes of all layers are kept, up to 0.2 GB for an image
        parts = [_distances_and_weights(model.routing_steps(image)["classes"]) for image in torch.split(seen, 1)]
    distances, weights = (torch.cat(part).cpu().double().numpy() for part in zip(*parts, strict=True))
    if not np.isfinite(distances).all() or not np.isfinite(weights).all():
        raise UserError("the votes for the classes or their assignments are not finite.")
    sample, iteration, capsule, _ = (index.ravel() for index in np.indices(distances.shape))
    places = {"sample": sample, "iteration": iteration + 1, "class": capsule}
    return pd.DataFrame({**places, "distance": distances.ravel(), "weight": weights.ravel()})


def _distances_and_weights(steps: list[Step]) -> tuple[Tensor, Tensor]:
    """Return |V_ij - mu_j| and R_ij, each (n, iterations, classes, children); class capsules have one position."""
    distances = torch.stack([step.squares.sum(dim=-1).sqrt().squeeze(1) for step in steps], dim=1)
    weights = torch.stack([step.assignments.squeeze(1) for step in steps], dim=1)
    return distances, weights
