"""Image normalisation as the first layer of a model, so that models take raw images in [0,1]."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

Normalise = Annotated[
    Literal["image", "none"],
    Field(description="image: zero mean, unit variance per image (brightness and contrast jitter in training)"),
]

VARIANCE_FLOOR = 1e-5
"""Far below the variance of real images (0.01 to 0.1); keeps outputs and gradients of constant images finite."""
BRIGHTNESS = 0.25
"""Maximum random shift in training, in standard deviations of the image."""
CONTRAST = 0.25
"""Maximum random relative change of scale in training."""


class Standardise(nn.Module):
    """Standardise each image to zero mean and unit variance; in training mode with random contrast and brightness."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the standardised images; like dropout, the jitter draws from torch's global generator."""
        variance, mean = torch.var_mean(images, dim=(1, 2, 3), keepdim=True, correction=0)
        standard = (images - mean) * torch.rsqrt(variance + VARIANCE_FLOOR)
        if not self.training:
            return standard
        contrast = 1 + CONTRAST * torch.empty_like(mean).uniform_(-1, 1)
        brightness = BRIGHTNESS * torch.empty_like(mean).uniform_(-1, 1)
        return contrast * standard + brightness


def build_normaliser(normalise: Normalise) -> nn.Module:
    """Return the normalisation layer."""
    return Standardise() if normalise == "image" else nn.Identity()
