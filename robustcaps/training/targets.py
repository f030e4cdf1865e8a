"""What a network learns to answer: the label of an image, or those of all objects that it shows at once."""

from __future__ import annotations

import torch
from torch import Tensor

from robustcaps.data.base import Data
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier

OTHER = "other"
"""The factor that holds the class of the second object, in data whose images show two."""


def labels_to_learn(data: Data) -> Tensor:
    """Return the labels (n,), or (n, 2) in ascending order where images show two objects."""
    if OTHER not in data.factors:
        return data.labels
    other = torch.tensor(data.factors[OTHER].to_numpy(), dtype=torch.int64)
    if not bool(((other >= 0) & (other < data.classes) & (other != data.labels)).all()):
        raise UserError(f"'{data.name}': factor '{OTHER}' must be a class, another one than the label.")
    return torch.stack([data.labels, other], 1).sort(1).values


def objects_in(labels: Tensor) -> int:
    """Return how many objects an image shows, from labels (n,) or (n, objects)."""
    return 1 if labels.ndim == 1 else labels.shape[1]


def check_targets(name: str, model: Classifier, data: Data, *, adversarial: bool) -> None:
    """Refuse to train on several objects what cannot learn them."""
    if objects_in(labels_to_learn(data)) == 1:
        return
    if not model.learns_several:
        raise UserError(f"model '{name}' cannot be trained on '{data.name}': its loss knows one object in an image.")
    if adversarial:
        raise UserError(f"'{data.name}' shows several objects at once: there is no adversarial training on it.")
