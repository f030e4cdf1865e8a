"""Gradient statistics by loss: the share of exact zeros, and the norms (Hinton et al. 2018, section 5).

This is the paper's own check for gradient masking. The result depends on the loss: on logits, on scores in [0,1], or on
the training loss, which is flat once its margins are met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradients import value_and_gradient
from robustcaps.attacks.losses import LOSSES, LossName
from robustcaps.attacks.norms import NORMS
from robustcaps.data.base import Data, Progress, as_data
from robustcaps.diagnostics.checks.shielded_model import ShieldedModel
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier
from robustcaps.models.inference import device_of, eval_mode, predict

GradientLoss = Literal["logits", "scores", "training"]
ATTACK_LOSSES: dict[GradientLoss, LossName] = {"logits": "ce", "scores": "ce-scores", "training": "training"}
"""Attack losses: the standard cross-entropy of the logits, that of the scores, and the training loss."""
BATCH_SIZE = 64


def measure_gradients(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    *,
    losses: Sequence[GradientLoss] | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Measure the gradient of a loss with respect to each image.

    Args:
        model: Any module from images to logits.
        data: A dataset, or a pair of tensors (images, labels).
        losses: 'logits' for any model, 'scores' and 'training' for models of the zoo; by default all that it has.
        progress: Called with the number of finished losses and of all losses.

    Returns:
        One row per (loss, sample). zeros: share of entries that are exactly zero; l2, linf: norms; finite: whether all
        entries are finite; right: whether the sample is classified correctly.
    """
    data = as_data(data)
    available: tuple[GradientLoss, ...] = tuple(ATTACK_LOSSES) if isinstance(model, Classifier) else ("logits",)
    chosen = available if losses is None else losses
    for loss in chosen:
        if loss not in available:
            raise UserError(f"losses: this model has no loss '{loss}'. Choose from: {', '.join(available)}.")
    parts = []
    with eval_mode(model):
        for done, loss in enumerate(chosen, start=1):
            parts += _rows_of_loss(loss, model, data)
            if progress:
                progress(done, len(chosen))
    return pd.concat(parts, ignore_index=True)


def _rows_of_loss(loss: GradientLoss, model: nn.Module, data: Data) -> list[pd.DataFrame]:
    """Return the rows of a loss, one frame per batch."""
    attacked = model if isinstance(model, Classifier) else ShieldedModel(model)
    device = device_of(model)
    rows = []
    for start in range(0, len(data), BATCH_SIZE):
        images, labels = (part[start : start + BATCH_SIZE].to(device) for part in (data.images, data.labels))
        counted = CountedModel(attacked, Counts.zeros(len(images)))
        _, gradient, logits = value_and_gradient(LOSSES[ATTACK_LOSSES[loss]], counted, images, Untargeted(labels))
        with torch.no_grad():
            predictions = predict(counted(images) if logits is None else logits)
        columns = {"index": torch.arange(start, start + len(images)), "label": labels, "right": predictions == labels}
        columns |= _statistics(gradient)
        rows.append(pd.DataFrame({name: value.cpu().numpy() for name, value in columns.items()}).assign(loss=loss))
    return rows


def _statistics(gradient: Tensor) -> dict[str, Tensor]:
    """Return the statistics of each sample's gradient."""
    flat = gradient.flatten(1)
    norms = {name: NORMS[name].size(gradient) for name in ("l2", "linf")}
    return {"zeros": (flat == 0).double().mean(1), **norms, "finite": torch.isfinite(flat).all(1)}
