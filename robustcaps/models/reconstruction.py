"""What vector capsules know of an image: its reconstruction, and what each dimension of a capsule changes in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import Reading
from robustcaps.models.inference import inference

OFFSETS = tuple(round(-0.25 + 0.05 * step, 2) for step in range(11))
"""What is added to a dimension of a capsule: -0.25 to 0.25 in steps of 0.05 (Sabour et al. 2017, figure 4)."""


@runtime_checkable
class Decodes(Protocol):
    """A model whose class capsules can be turned back into images."""

    reconstruction: float
    """The weight of the reconstruction error in its training loss; 0: its decoder was never trained."""

    def read(self, images: Tensor) -> Reading:
        """Return logits, scores and class capsules."""

    def decode(self, poses: Tensor, labels: Tensor) -> Tensor:
        """Return the images that class capsules (n, classes, pose) encode, all but the labels' masked out."""


def reconstruct(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the images (n, channels, height, width) as the capsules of the labels encode them.

    Without labels they are those of the predicted classes: what the model itself takes the images for.
    """
    decoder = decoder_of(model)
    with inference(model, images) as seen:
        return decoder.decode(*_capsules(decoder, seen, labels)).cpu()


def perturb_capsule(
    model: nn.Module, images: Tensor, labels: Tensor | None = None, *, offsets: Sequence[float] = OFFSETS
) -> Tensor:
    """Return what is decoded when one dimension of the class capsule is moved by an offset, for each of both.

    The images are (n, dimensions, offsets, channels, height, width); labels: see `reconstruct`.
    """
    decoder = decoder_of(model)
    with inference(model, images) as seen:
        poses, classes = _capsules(decoder, seen, labels)
        n, _, dimensions = poses.shape
        moves = torch.einsum("de,o->doe", torch.eye(dimensions), torch.tensor(list(offsets))).to(poses)
        moved = (poses[:, None, None] + moves[:, :, None]).flatten(0, 2)
        decoded = decoder.decode(moved, classes.repeat_interleave(dimensions * len(offsets)))
    return decoded.view(n, dimensions, len(offsets), *decoded.shape[1:]).cpu()


def decoder_of(model: nn.Module) -> Decodes:
    """Return the model as one that can decode; one that cannot is refused."""
    if not isinstance(model, Decodes):
        raise UserError("no decoder to look through: only vector capsules have one.")
    if model.reconstruction == 0:
        raise UserError("the decoder was not trained (reconstruction = 0).")
    return model


def class_capsules(reading: Reading) -> Tensor:
    """Return the class capsules (n, classes, pose) of a reading that must have some."""
    if reading.poses is None:
        raise UserError("a decoder, but no class capsules to decode.")
    return reading.poses


def _capsules(decoder: Decodes, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the class capsules (n, classes, pose) and the classes to decode (n,)."""
    reading = decoder.read(images)
    return class_capsules(reading), reading.logits.argmax(dim=1) if labels is None else labels.to(images.device)
