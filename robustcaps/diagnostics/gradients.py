"""Gradients by loss: how many entries are exactly zero, and how large the others are (Hinton et al. 2018, section 5).

The paper's own check for gradient masking. What it shows depends on the loss: on logits, on the scores in [0,1], or on
the loss that the model was trained with, which is flat once its margins are met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradient import value_and_gradient
from robustcaps.attacks.losses import LOSSES, LossName
from robustcaps.attacks.norms import NORMS
from robustcaps.data.base import Data, Progress, as_data
from robustcaps.diagnostics.checks.shielded_model import Subject
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier
from robustcaps.models.inference import device_of, eval_mode, predict

By = Literal["logits", "scores", "training"]
CLIMBED: dict[By, LossName] = {"logits": "plain-ce", "scores": "ce-scores", "training": "training"}
"""The cross-entropy of the logits as every textbook writes it, that of the scores, and the training loss."""
BATCH = 64


def measure_gradients(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    *,
    losses: Sequence[By] | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Return what d loss / d image is like: one row per (loss, sample).

    zeros: share of entries that are exactly zero; l2, linf: its norms; finite: whether all entries are; right: whether
    the model is. `losses` are all that the model has: 'logits' of any, 'scores' and 'training' of the zoo's.
    """
    data = as_data(data)
    known: tuple[By, ...] = tuple(CLIMBED) if isinstance(model, Classifier) else ("logits",)
    chosen = known if losses is None else losses
    for name in chosen:
        if name not in known:
            raise UserError(f"losses: this model has no '{name}'. Choose from: {', '.join(known)}.")
    parts = []
    with eval_mode(model):
        for done, name in enumerate(chosen, start=1):
            parts += _rows_by(name, model, data)
            if progress:
                progress(done, len(chosen))
    return pd.concat(parts, ignore_index=True)


def _rows_by(name: By, model: nn.Module, data: Data) -> list[pd.DataFrame]:
    """Return the rows of a loss, batch by batch."""
    asked = model if isinstance(model, Classifier) else Subject(model)
    device = device_of(model)
    rows = []
    for start in range(0, len(data), BATCH):
        images, labels = (part[start : start + BATCH].to(device) for part in (data.images, data.labels))
        counted = CountedModel(asked, Counts.zeros(len(images)))
        _, gradient, logits = value_and_gradient(LOSSES[CLIMBED[name]], counted, images, Untargeted(labels))
        with torch.no_grad():
            answers = predict(counted(images) if logits is None else logits)
        columns = {"index": torch.arange(start, start + len(images)), "label": labels, "right": answers == labels}
        columns |= _describe(gradient)
        rows.append(pd.DataFrame({key: value.cpu().numpy() for key, value in columns.items()}).assign(loss=name))
    return rows


def _describe(gradient: Tensor) -> dict[str, Tensor]:
    """Return the figures of each sample's gradient."""
    flat = gradient.flatten(1)
    sizes = {name: NORMS[name].size(gradient) for name in ("l2", "linf")}
    return {"zeros": (flat == 0).double().mean(1), **sizes, "finite": torch.isfinite(flat).all(1)}
