"""Training targets: the label of an image, or the classes of all objects that it shows."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.data.base import Data
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier

SECOND_LABEL = "other"
"""The factor that holds the class of the second object, in datasets whose images show two."""


def training_targets(data: Data) -> Tensor:
    """Return the labels (n,), or (n, 2) in ascending order if images show two objects."""
    if SECOND_LABEL not in data.factors:
        return data.labels
    other = torch.tensor(data.factors[SECOND_LABEL].to_numpy(), dtype=torch.int64)
    if not bool(((other >= 0) & (other < data.classes) & (other != data.labels)).all()):
        raise UserError(f"'{data.name}': factor '{SECOND_LABEL}' must be a class that differs from the label.")
    return torch.stack([data.labels, other], 1).sort(1).values


def objects_per_image(labels: Tensor) -> int:
    """Return how many objects an image shows, given labels (n,) or (n, objects)."""
    return 1 if labels.ndim == 1 else labels.shape[1]


def check_targets(name: str, model: Classifier, data: Data, *, adversarial: bool) -> None:
    """Raise `UserError` if the data shows several objects per image and the model or training does not support it."""
    if objects_per_image(training_targets(data)) == 1:
        return
    if not model.supports_multi_label:
        raise UserError(
            f"model '{name}' cannot be trained on '{data.name}': its loss supports only one object per image."
        )
    if adversarial:
        raise UserError(f"'{data.name}' shows several objects per image, which adversarial training does not support.")
