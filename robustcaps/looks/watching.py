"""A model as one looks at it: in eval mode, without gradients, on images it was built for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import Classifier


@contextmanager
def watched(model: nn.Module, images: Tensor) -> Iterator[Tensor]:
    """Give the images on the model's device; inside, the model is in eval mode and no gradient is kept."""
    _check_fit(model, images)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield images.to(device_of(model))
    finally:
        for module, training in modes.items():
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """Return where the model's numbers live."""
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")


def _check_fit(model: nn.Module, images: Tensor) -> None:
    if images.ndim != 4 or len(images) == 0:
        raise UserError(f"images must be (n, channels, height, width), at least one, not {tuple(images.shape)}.")
    if isinstance(model, Classifier) and images.shape[1:] != (model.channels, model.size, model.size):
        built = (model.channels, model.size, model.size)
        raise UserError(f"the model was built for images of {built}; these are {tuple(images.shape[1:])}.")
