"""Affine maps of images: where each pixel of a transformed image comes from.

A map is p' = t + (1 + s) R(r) S(h) p, where p is a pixel's place from the centre in pixels, to the right and down; R
turns it clockwise by r degrees, S(h) shears it by h degrees, and t is a share of the image's size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def transform_images(images: Tensor, parameters: Tensor) -> Tensor:
    """Return the images under maps (n, 5): r, t to the right, t down, s, h; differentiable in the parameters.

    Between pixels they are interpolated bilinearly; what comes from outside of an image repeats its border.
    """
    places = source_places(parameters, images.shape[-2], images.shape[-1]).to(images.dtype)
    moved = F.grid_sample(images, places, mode="bilinear", padding_mode="border", align_corners=False)
    return moved.clamp(0.0, 1.0)


def source_places(parameters: Tensor, height: int, width: int) -> Tensor:
    """Return where each pixel comes from, (n, height, width, 2), as `grid_sample` takes it; computed in float64."""
    angle, right, down, scaling, shearing = (column[:, None, None] for column in parameters.double().unbind(1))
    x = _from_centre(width, parameters)[None, None, :] - width * right
    y = _from_centre(height, parameters)[None, :, None] - height * down
    cos, sin = torch.cos(torch.deg2rad(angle)), torch.sin(torch.deg2rad(angle))
    turned_x, turned_y = (x * cos + y * sin) / (1 + scaling), (y * cos - x * sin) / (1 + scaling)
    from_x = turned_x - torch.tan(torch.deg2rad(shearing)) * turned_y
    return torch.stack([2 * from_x / width, 2 * turned_y / height], dim=3)


def _from_centre(pixels: int, like: Tensor) -> Tensor:
    """Return the distance of each row or column from the centre."""
    return torch.arange(pixels, dtype=torch.float64, device=like.device) - (pixels - 1) / 2
