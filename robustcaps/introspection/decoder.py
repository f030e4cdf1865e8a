"""What each dimension of a vector capsule encodes: images decoded from perturbed class capsules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustcaps.models.inference import inference
from robustcaps.models.reconstruction import decoder_inputs, decoder_of

OFFSETS = tuple(round(-0.25 + 0.05 * step, 2) for step in range(11))
"""Added to one dimension of a capsule: -0.25 to 0.25 in steps of 0.05 (Sabour et al. 2017, figure 4)."""


def perturb_capsule(
    model: nn.Module, images: Tensor, labels: Tensor | None = None, *, offsets: Sequence[float] = OFFSETS
) -> Tensor:
    """Decode each image's class capsule with one dimension shifted, for every dimension and offset.

    Args:
        model: A vector capsule network with a trained decoder.
        images: (n, channels, height, width).
        labels: Classes whose capsules are decoded (n,); by default the predicted ones.
        offsets: Numbers added to a dimension.

    Returns:
        Images (n, dimensions, offsets, channels, height, width).

    """
    decoder = decoder_of(model)
    with inference(model, images) as inputs:
        poses, classes = decoder_inputs(decoder, inputs, labels)
        n, _, dimensions = poses.shape
        shifts = torch.einsum("de,o->doe", torch.eye(dimensions), torch.tensor(list(offsets))).to(poses)
        shifted = (poses[:, None, None] + shifts[:, :, None]).flatten(0, 2)
        decoded = decoder.decode(shifted, classes.repeat_interleave(dimensions * len(offsets)))
    return decoded.view(n, dimensions, len(offsets), *decoded.shape[1:]).cpu()
