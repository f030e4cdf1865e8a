"""Detection of adversarial examples by reconstruction error (DARCCC, Frosst, Sabour and Hinton 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.evaluation import AttackedBatch, evaluate
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.models.reconstruction import reconstruct

BATCH_SIZE = 256


@dataclass(frozen=True, eq=False)
class ReconstructionDetector:
    """Flags images that the predicted class capsule reconstructs badly."""

    model: nn.Module
    threshold: float

    @classmethod
    def fit(cls, model: nn.Module, images: Tensor, *, quantile: float = 0.95) -> Self:
        """Return a detector that passes a fraction `quantile` of these clean validation images."""
        if not 0 < quantile < 1:
            raise UserError(f"quantile: must lie between 0 and 1, not {quantile}.")
        return cls(model, float(reconstruction_errors(model, images).quantile(quantile)))

    def errors(self, images: Tensor) -> Tensor:
        """Return the reconstruction error of each image (n,)."""
        return reconstruction_errors(self.model, images)

    def flags(self, images: Tensor) -> Tensor:
        """Return which images are flagged (n,)."""
        return self.too_large(self.errors(images))

    def too_large(self, errors: Tensor) -> Tensor:
        """Return which reconstruction errors exceed the threshold (n,); NaN does."""
        return ~(errors <= self.threshold)


def reconstruction_errors(model: nn.Module, images: Tensor) -> Tensor:
    """Return |x - x'|_2 (n,), where x' is the reconstruction from the capsule of the predicted class."""
    differences = [reconstruct(model, batch) - batch.cpu() for batch in torch.split(images, BATCH_SIZE)]
    return torch.cat([torch.linalg.vector_norm(difference, dim=(1, 2, 3)) for difference in differences])


def detect(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    attack: Attack,
    detector: ReconstructionDetector,
    *,
    seed: int = 0,
    batch_size: int = 64,
    model_name: str | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Evaluate an attack on a model that is protected by a detector.

    Args:
        model: The attacked model.
        data: A dataset, or a pair of tensors (images, labels).
        attack: The attack, with its budgets.
        detector: The detector that sees the attacked images.
        seed: Seed of the attack's random numbers.
        batch_size: Number of samples attacked together.
        model_name: Name of the model in the rows; by default that of its class.
        progress: Called with the number of finished rows and of all rows.

    Returns:
        The rows of `evaluate`, with the columns error (of the reconstruction), flagged, and undetected: fooled but not
        flagged.
    """

    def detector_columns(batch: AttackedBatch) -> dict[str, Any]:
        errors = detector.errors(batch.adversarial)
        return {"error": errors.numpy(), "flagged": detector.too_large(errors).numpy()}

    rows = evaluate(
        model,
        data,
        attack,
        seed=seed,
        batch_size=batch_size,
        model_name=model_name,
        extra_columns=detector_columns,
        progress=progress,
    )
    return rows.assign(undetected=rows["fooled"] & ~rows["flagged"])
