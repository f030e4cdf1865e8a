"""How often a model is right."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError

CHUNK = 64
"""Images per forward pass: capsule networks need megabytes for each."""


def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Return the predicted classes (n,), on the CPU; the model is in eval mode afterwards."""
    model.eval()
    with torch.inference_mode():
        logits = torch.cat([model(chunk).cpu() for chunk in torch.split(images, CHUNK)])
    if not bool(torch.isfinite(logits).all()):
        raise UserError("the model's logits are not finite, though its training loss was; try a lower learning rate.")
    return logits.argmax(dim=1)


def share_right(guesses: Tensor, labels: Tensor) -> float:
    """Return the accuracy."""
    return (guesses == labels).double().mean().item()
