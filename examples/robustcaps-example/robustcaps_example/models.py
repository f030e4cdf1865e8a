"""A model: any nn.Module from images in [0,1] to logits, made by a factory that knows the data's sizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import robustcaps as rc


class TemplateMatcher(nn.Module):
    """Bars at `classes` heights: the logit of a class is how bright its rows are."""

    def __init__(self, classes: int, size: int, sharpness: float) -> None:
        super().__init__()
        bands = torch.arange(size) * classes // size
        self.register_buffer("templates", (bands == torch.arange(classes)[:, None]).float() * classes / size)
        self.sharpness = sharpness

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes)."""
        return self.sharpness * images.mean((1, 3)) @ self.templates.T


@rc.model("example-template", pretrained=True)  # it needs no training, so it may be attacked as it is built
def template_matcher(*, classes: int, channels: int, size: int, sharpness: float = 10.0) -> nn.Module:
    """Compares the brightness of bands; needs no training."""
    return TemplateMatcher(classes, size, sharpness)
