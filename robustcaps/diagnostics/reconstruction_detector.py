"""Who gets past classifier and detector: inputs that a capsule network cannot reconstruct are suspect (DARCCC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.evaluation import evaluate
from robustcaps.data.base import Data, Progress
from robustcaps.diagnostics.kinds.detection import detection_rates
from robustcaps.errors import UserError
from robustcaps.models.reconstruction import reconstruct

__all__ = ["ReconstructionDetector", "detect", "detection_rates", "reconstruction_errors"]

AT_ONCE = 256
"""How many images are reconstructed together."""


@dataclass(frozen=True, eq=False)
class ReconstructionDetector:
    """Flags images whose reconstruction by the winning capsule is too far off (Frosst, Sabour, Hinton 2018)."""

    model: nn.Module
    threshold: float

    @classmethod
    def fit(cls, model: nn.Module, images: Tensor, *, quantile: float = 0.95) -> Self:
        """Set the threshold so that this share of clean validation images passes."""
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
        """Return which reconstruction errors are flagged (n,); one that is not a number is."""
        return ~(errors <= self.threshold)


def reconstruction_errors(model: nn.Module, images: Tensor) -> Tensor:
    """Return |x - x'|_2 (n,), x' being what the capsule of the predicted class encodes."""
    offsets = [reconstruct(model, some) - some.cpu() for some in torch.split(images, AT_ONCE)]
    return torch.cat([torch.linalg.vector_norm(offset, dim=(1, 2, 3)) for offset in offsets])


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
    """Return the rows of `evaluate` with the columns error (of the reconstruction), flagged, and undetected.

    Undetected is what is fooled but not flagged.
    """

    def look(images: Tensor) -> dict[str, Any]:
        errors = detector.errors(images)
        return {"error": errors.numpy(), "flagged": detector.too_large(errors).numpy()}

    rows = evaluate(
        model, data, attack, seed=seed, batch_size=batch_size, model_name=model_name, look=look, progress=progress
    )
    return rows.assign(undetected=rows["fooled"] & ~rows["flagged"])
