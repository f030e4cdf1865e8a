"""Reconstruction of images from the class capsules of vector capsule networks."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import ClassifierOutput
from robustcaps.models.inference import inference


@runtime_checkable
class ReconstructingModel(Protocol):
    """A model with a decoder that reconstructs images from class capsules."""

    reconstruction: float
    """Weight of the reconstruction error in the training loss; 0 means that the decoder is untrained."""

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return logits, scores and class capsules."""

    def decode(self, poses: Tensor, labels: Tensor) -> Tensor:
        """Return the images that class capsules (n, classes, pose) encode, with all but those of the labels masked."""


def reconstruct(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Tensor:
    """Reconstruct images from their class capsules.

    Args:
        model: A vector capsule network with a trained decoder.
        images: (n, channels, height, width) in [0,1].
        labels: The classes (n,) whose capsules are decoded; by default the predicted ones.

    Returns:
        The reconstructions (n, channels, height, width), on the CPU.
    """
    decoder = decoder_of(model)
    with inference(model, images) as batch:
        return decoder.decode(*decoder_inputs(decoder, batch, labels)).cpu()


def decoder_of(model: nn.Module) -> ReconstructingModel:
    """Return the model, or raise `UserError` if it has no trained decoder."""
    if not isinstance(model, ReconstructingModel):
        raise UserError("the model has no decoder; only vector capsule networks have one.")
    if model.reconstruction == 0:
        raise UserError("the decoder is untrained (reconstruction = 0).")
    return model


def class_capsules(output: ClassifierOutput) -> Tensor:
    """Return the class capsules (n, classes, pose) of an output, or raise `UserError` if it has none."""
    if output.poses is None:
        raise UserError("the model has a decoder, but no class capsules to decode.")
    return output.poses


def decoder_inputs(decoder: ReconstructingModel, images: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the class capsules (n, classes, pose) and the classes to decode (n,)."""
    output = decoder.classify(images)
    return class_capsules(output), output.logits.argmax(dim=1) if labels is None else labels.to(images.device)
