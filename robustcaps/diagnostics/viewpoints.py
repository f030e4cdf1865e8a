"""The views diagnostic: which samples a network classifies correctly, on familiar and on novel viewpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.data.base import Data, Progress
from robustcaps.data.viewpoints import Angle, familiar
from robustcaps.models.inference import device_of, eval_mode, predict

BATCH_SIZE = 64


def view_rows(
    model: nn.Module,
    data: Data,
    *,
    progress: Progress | None,
    by: Angle,
) -> pd.DataFrame:
    """Return one row per image: whether its viewpoint is familiar by this angle, and whether the model is correct."""
    is_familiar = familiar(data.factors, by)
    predictions = _predict_all(model, data, progress)
    columns = {"index": np.arange(len(data)), "label": data.labels.numpy(), "answer": predictions.numpy()}
    is_correct = (predictions == data.labels).numpy()
    return pd.DataFrame({**columns, "right": is_correct, "familiar": is_familiar, "by": by})


def _predict_all(model: nn.Module, data: Data, progress: Progress | None) -> Tensor:
    """Return the predicted classes (n,)."""
    device = device_of(model)
    predictions: list[Tensor] = []
    with eval_mode(model), torch.no_grad():
        for images in torch.split(data.images, BATCH_SIZE):
            predictions.append(predict(model(images.to(device))).cpu())
            if progress:
                progress(sum(map(len, predictions)), len(data))
    return torch.cat(predictions)
