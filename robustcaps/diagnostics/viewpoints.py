"""Novel viewpoints in a suite: which samples a network gets right, of views it was trained on and of others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data, Progress
from robustcaps.data.viewpoints import Angle, familiar
from robustcaps.models.inference import device_of, eval_mode, predict

BATCH = 64


def view_rows(
    model: nn.Module,
    data: Data,
    *,
    eps: float,  # noqa: ARG001  nothing is attacked
    norm: NormName,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    progress: Progress | None,
    by: Angle,
) -> pd.DataFrame:
    """Return one row per image: whether its view is familiar by this angle, and whether the model is right."""
    known = familiar(data.factors, by)
    answers = _answers(model, data, progress)
    columns = {"index": np.arange(len(data)), "label": data.labels.numpy(), "answer": answers.numpy()}
    return pd.DataFrame({**columns, "right": (answers == data.labels).numpy(), "familiar": known, "by": by})


def _answers(model: nn.Module, data: Data, progress: Progress | None) -> Tensor:
    """Return the predicted classes, batch by batch."""
    device = device_of(model)
    answers: list[Tensor] = []
    with eval_mode(model), torch.no_grad():
        for images in torch.split(data.images, BATCH):
            answers.append(predict(model(images.to(device))).cpu())
            if progress:
                progress(sum(map(len, answers)), len(data))
    return torch.cat(answers)
