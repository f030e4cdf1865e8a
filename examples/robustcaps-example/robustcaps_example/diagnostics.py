"""A diagnostic: a question about a model, answered with a figure, a threshold and a word on what was seen."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

import robustcaps as rc


@rc.diagnostic("example-mirror", remedy="train on mirrored images, too")
@torch.no_grad()
def mirror(
    model: nn.Module,
    data: rc.Data,
    eps: float,
    *,
    share: Annotated[float, Field(gt=0, le=1, description="how many predictions may change")] = 0.2,
) -> rc.Finding:
    """A model whose answer changes when an image is mirrored has learned more than the object."""
    changed = model(data.images).argmax(1) != model(data.images.flip(3)).argmax(1)
    value = float(changed.float().mean())
    return rc.Finding(flagged=value > share, value=value, threshold=share, words=f"{100 * value:.0f} % change")
