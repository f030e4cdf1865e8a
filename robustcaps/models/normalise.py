"""Normalisation inside the models, so that everything outside sees raw images in [0,1]."""

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
"""Far below the variance of a real image (0.01 to 0.1); keeps output and gradient of a constant one finite."""
BRIGHTNESS = 0.25
"""Largest random shift in training, in standard deviations of the image."""
CONTRAST = 0.25
"""Largest random change of scale in training."""


class Standardise(nn.Module):
    """Each image to zero mean and unit variance; in training also a random contrast (scale) and brightness (shift)."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the standardised images; randomness in training comes from torch's own generator, as in dropout."""
        variance, mean = torch.var_mean(images, dim=(1, 2, 3), keepdim=True, correction=0)
        standard = (images - mean) * torch.rsqrt(variance + VARIANCE_FLOOR)
        if not self.training:
            return standard
        contrast = 1 + CONTRAST * torch.empty_like(mean).uniform_(-1, 1)
        brightness = BRIGHTNESS * torch.empty_like(mean).uniform_(-1, 1)
        return contrast * standard + brightness


def build_normaliser(normalise: Normalise) -> nn.Module:
    """Return the module that a model puts before its first layer."""
    return Standardise() if normalise == "image" else nn.Identity()
