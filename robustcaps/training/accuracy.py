"""Accuracy of a model on labelled images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.inference import inference

CHUNK = 64
"""Images per forward pass: capsule networks need megabytes for each."""


def predict_classes(model: nn.Module, images: Tensor, objects: int = 1) -> Tensor:
    """Return the predicted classes (n,) in eval mode, on the CPU.

    If images show several objects, return the classes with the largest logits in ascending order (n, objects).
    """
    chunks = []
    for chunk in torch.split(images, CHUNK):
        with inference(model, chunk) as batch:
            chunks.append(model(batch).cpu())
    logits = torch.cat(chunks)
    if not bool(torch.isfinite(logits).all()):
        raise UserError("the model's logits are not finite although its training loss was; try a lower learning rate.")
    return logits.argmax(dim=1) if objects == 1 else logits.topk(objects, dim=1).indices.sort(1).values


def accuracy_score(predictions: Tensor, labels: Tensor) -> float:
    """Return the fraction of correct predictions; if images show several objects, all of them must be correct."""
    return (predictions == labels).view(len(labels), -1).all(1).double().mean().item()
