"""Inference with any model: eval mode, device and predicted classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import Classifier

NO_ANSWER = -1
"""The predicted class of a model whose logits are not finite."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model and its submodules into eval mode; restore the mode of each afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def inference(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """Yield the images on the model's device, with the model in eval mode and gradients disabled."""
    _check_shape(model, images)
    with eval_mode(model), torch.no_grad():
        yield images.to(device_of(model))


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters and buffers."""
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")


def predict(logits: Tensor) -> Tensor:
    """Return the predicted class of each sample, `NO_ANSWER` where the logits are not finite."""
    return torch.where(torch.isfinite(logits).all(1), logits.argmax(1), NO_ANSWER)


def _check_shape(model: nn.Module, images: Tensor) -> None:
    if images.ndim != 4 or len(images) == 0:
        raise UserError(f"images must have shape (n, channels, height, width) with n >= 1, not {tuple(images.shape)}.")
    if isinstance(model, Classifier) and images.shape[1:] != (model.channels, model.size, model.size):
        expected = (model.channels, model.size, model.size)
        raise UserError(f"the model expects images of shape {expected}, not {tuple(images.shape[1:])}.")
