"""How often a model is right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError

CHUNK = 64
"""Images per forward pass: capsule networks need megabytes for each."""


def predict(model: nn.Module, images: Tensor, objects: int = 1) -> Tensor:
    """Return the predicted classes (n,), on the CPU; the model is in eval mode afterwards.

    Of images of several objects they are as many strongest classes, in ascending order (n, objects).
    """
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(chunk).cpu() for chunk in torch.split(images, CHUNK)])
    if not bool(torch.isfinite(logits).all()):
        raise UserError("the model's logits are not finite, though its training loss was; try a lower learning rate.")
    return logits.argmax(dim=1) if objects == 1 else logits.topk(objects, dim=1).indices.sort(1).values


def share_right(guesses: Tensor, labels: Tensor) -> float:
    """Return the accuracy; where images show several objects, all of them must be right."""
    return (guesses == labels).view(len(labels), -1).all(1).double().mean().item()
