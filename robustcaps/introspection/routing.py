"""How EM routing assigns votes to the class capsules, as in figure 2 of Hinton et al. (2018)."""

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
class EMRoutingModel(Protocol):
    """A model that exposes its EM iterations by layer; the class capsules' layer is named 'classes'."""

    def routing_steps(self, images: Tensor) -> dict[str, list[Step]]:
        """Return the EM iterations of every capsule layer."""


def vote_distances(model: nn.Module, images: Tensor) -> pd.DataFrame:
    """Return the distance of each vote to each class capsule: a row per (sample, iteration, class, child capsule).

    `distance` is the Euclidean |V_ij - mu_j| to the mean of iteration t (from 1); `weight` is the assignment R_ij that
    this mean was computed with: uniform in iteration 1, as in the paper's figure, then that of the preceding E-step.
    The child's activation a_i is not included, so the weights of a sample and iteration sum to the number of children.
    """
    if not isinstance(model, EMRoutingModel):
        raise UserError("the model has no EM routing; only matrix capsule networks do.")
    with inference(model, images) as inputs:  # one by one: the votes of all layers take up to 0.2 GB per image
        parts = [_distances_and_weights(model.routing_steps(image)["classes"]) for image in torch.split(inputs, 1)]
    distances, weights = (torch.cat(part).cpu().double().numpy() for part in zip(*parts, strict=True))
    if not np.isfinite(distances).all() or not np.isfinite(weights).all():
        raise UserError("the votes for the classes or their assignments are not finite.")
    sample, iteration, capsule, _ = (index.ravel() for index in np.indices(distances.shape))
    columns = {"sample": sample, "iteration": iteration + 1, "class": capsule}
    return pd.DataFrame({**columns, "distance": distances.ravel(), "weight": weights.ravel()})


def _distances_and_weights(steps: list[Step]) -> tuple[Tensor, Tensor]:
    """Return |V_ij - mu_j| and R_ij, each (n, iterations, classes, children); class capsules have one position."""
    distances = torch.stack([step.squares.sum(dim=-1).sqrt().squeeze(1) for step in steps], dim=1)
    weights = torch.stack([step.assignments.squeeze(1) for step in steps], dim=1)
    return distances, weights
