"""Vector capsules with dynamic routing and a reconstructing decoder (Sabour, Frosst, Hinton, NIPS 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.interventions import UNIFORM, Intervention, fewer_iterations
from robustcaps.capsules.layers import DynamicRules, VectorCapsules, VectorPrimaryCapsules
from robustcaps.capsules.losses import margin_loss, present_classes
from robustcaps.capsules.routing import (
    Update,
    coupling_coefficients,
    dynamic_routing,
    length_logit,
    squash,
    squashed_length,
)
from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, ClassifierOutput, TrainingRecipe
from robustcaps.models.normalise import Normalise, build_normaliser
from robustcaps.models.reconstruction import class_capsules
from robustcaps.registry import MODELS

Iterations = Annotated[int, Field(ge=1, description="routing iterations")]
RoutingUpdate = Annotated[Update, Field(description="add the agreement to the routing logits, or assign it")]
Transforms = Annotated[
    Literal["full", "shared"], Field(description="one transform per pair of capsules, or one per class")
]
Reconstruction = Annotated[float, Field(ge=0, description="weight of the summed squared reconstruction error")]

BATCH_MULTIPLE = 8
"""Batches are padded to a multiple of this: convolutions and batched matrix products on a CPU round small batches
differently, and a sample's result must not depend on the size of its batch."""

CHILD_POSE = 8
CLASS_POSE = 16


@dataclass(frozen=True)
class Architecture:
    """Layer sizes of a vector capsule network."""

    filters: int
    kernel: int
    stride: int
    types: int
    primary_kernel: int
    decoder: tuple[int, int]

    def grid(self, size: int) -> int:
        """Return the height and width of the grid of primary capsules; less than 1 if the image is too small."""
        features = (size - self.kernel) // self.stride + 1
        return (features - self.primary_kernel) // 2 + 1


class ReconstructingCapsNet(CapsuleClassifier):
    """Base class of networks that are trained with the margin loss and a decoder of the class capsules."""

    supports_multi_label: ClassVar[bool] = True
    decoder: nn.Sequential
    reconstruction: float

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:  # noqa: ARG002
        """Return margin loss plus weighted reconstruction error of each sample (n,); the label masks the decoder.

        Images of several objects have no reconstruction error, which would need an image of each object alone.
        """
        if self.reconstruction and labels.ndim > 1:
            raise UserError("the decoder cannot reconstruct images of several objects; set reconstruction = 0.")
        output = self.classify(images)
        loss = margin_loss(output.scores, present_classes(labels, self.classes).to(output.scores))
        if self.reconstruction and output.poses is not None:
            error = (self.decode(output.poses, labels) - images).square().sum(dim=(1, 2, 3))
            loss = loss + self.reconstruction * error
        return loss

    def decode(self, poses: Tensor, labels: Tensor) -> Tensor:
        """Return the images in [0,1] that class capsules (n, classes, 16) encode, all but the labels' masked out."""
        mask = F.one_hot(labels, self.classes).to(poses)
        pixels: Tensor = self.decoder(pad_batch((poses * mask.unsqueeze(2)).flatten(1)))
        return pixels[: len(poses)].view(-1, self.channels, self.size, self.size)

    def reconstruct(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return reconstructions of the images from the capsules of the labels, or else of the predicted classes."""
        output = self.classify(images)
        poses = class_capsules(output)
        return self.decode(poses, output.logits.argmax(dim=1) if labels is None else labels)

    def build_decoder(self, widths: tuple[int, int]) -> nn.Sequential:
        """Return a decoder with hidden layers of these widths."""
        first, second = widths
        return nn.Sequential(
            nn.Linear(self.classes * CLASS_POSE, first),
            nn.ReLU(),
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, self.channels * self.size * self.size),
            nn.Sigmoid(),
        )


class VectorCapsNet(ReconstructingCapsNet):
    """Convolution, primary capsules, one capsule per class whose length is the class's score, and a decoder."""

    recipe: ClassVar[TrainingRecipe] = TrainingRecipe(epochs=15, batch_size=64, lr=3e-3)

    def __init__(
        self,
        *,
        classes: int,
        channels: int,
        size: int,
        normalise: Normalise,
        architecture: Architecture,
        rules: DynamicRules,
        reconstruction: float,
    ) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        grid = architecture.grid(size)
        if grid < 1:
            raise UserError(f"vector-capsnet: images of {size}x{size} are too small for the two convolutions.")
        self.reconstruction = reconstruction
        self.stem = nn.Sequential(
            build_normaliser(normalise),
            nn.Conv2d(channels, architecture.filters, architecture.kernel, stride=architecture.stride),
            nn.ReLU(),
        )
        self.primary = VectorPrimaryCapsules(
            architecture.filters,
            types=architecture.types,
            pose=CHILD_POSE,
            kernel=architecture.primary_kernel,
            stride=2,
        )
        self.class_capsules = VectorCapsules(
            children=grid * grid * architecture.types,
            child_pose=CHILD_POSE,
            parents=classes,
            pose=CLASS_POSE,
            rules=rules,
        )
        self.decoder = self.build_decoder(architecture.decoder)

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return log |s_k|^2, the lengths |v_k| and the class capsules v."""
        s = self._class_capsules(images)
        return ClassifierOutput(logits=length_logit(s), scores=squashed_length(s), poses=squash(s))

    def votes(self, images: Tensor) -> Tensor:
        """Return the prediction vectors of the class capsules (n, classes, children, 16)."""
        return self.class_capsules.votes(self.primary(self.stem(images)))

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return log |v_j| of v_j = squash(mean_i u_hat_{j|i}), with softmax |v_j| / sum_k |v_k|, and `classify`'s."""
        votes = self.votes(pad_batch(images))[: len(images)]
        rules = self.class_capsules.rules
        s = dynamic_routing(votes.detach(), iterations=rules.iterations, update=rules.update)
        return F.logsigmoid(length_logit(votes.mean(dim=2))), length_logit(s)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Uniform coupling coefficients, and fewer iterations; one iteration is uniform coupling."""
        return (UNIFORM, *fewer_iterations(self.class_capsules.rules.iterations)[1:])

    def intervened_logits(self, images: Tensor, intervention: Intervention) -> Tensor:
        """Return the logits (n, classes) with changed routing."""
        rules = self.class_capsules.rules
        iterations = 1 if intervention.uniform else intervention.iterations or rules.iterations
        votes = self.votes(pad_batch(images))[: len(images)]
        return length_logit(dynamic_routing(votes, iterations=iterations, update=rules.update))

    def routing_statistics(self, images: Tensor) -> dict[str, dict[str, Tensor]]:
        """Return the entropy of the coupling coefficients, and the lengths of the class capsules."""
        rules = self.class_capsules.rules
        votes = self.votes(pad_batch(images))[: len(images)]
        c = coupling_coefficients(votes, iterations=rules.iterations, update=rules.update)
        entropy = torch.special.entr(c).sum(dim=1).mean(dim=1) / math.log(self.classes)
        return {"classes": {"entropy": entropy, "activations": self.classify(images).scores}}

    def _class_capsules(self, images: Tensor) -> Tensor:
        """Return the class capsules s before squashing."""
        s: Tensor = self.class_capsules(self.primary(self.stem(pad_batch(images))))
        return s[: len(images)]


def pad_batch(samples: Tensor) -> Tensor:
    """Return the samples, padded with zeros to a multiple of `BATCH_MULTIPLE`."""
    return F.pad(samples, (0, 0) * (samples.ndim - 1) + (0, -len(samples) % BATCH_MULTIPLE))


def _register(name: str, summary: str, architecture: Architecture) -> None:
    """Register a vector capsule network of these sizes."""

    def build(
        *,
        classes: int,
        channels: int,
        size: int,
        normalise: Normalise = "image",
        iterations: Iterations = 3,
        update: RoutingUpdate = "increment",
        transforms: Transforms = "full",
        reconstruction: Reconstruction = 0.0005,
    ) -> VectorCapsNet:
        return VectorCapsNet(
            classes=classes,
            channels=channels,
            size=size,
            normalise=normalise,
            architecture=architecture,
            rules=DynamicRules(iterations, update, transforms),
            reconstruction=reconstruction,
        )

    build.__doc__ = summary
    MODELS.add(name, build)


_register(
    "vector-capsnet",
    "Capsule network of Sabour et al. 2017, dynamic routing (8.2 M parameters at 28x28, 10 classes).",
    Architecture(filters=256, kernel=9, stride=1, types=32, primary_kernel=9, decoder=(512, 1024)),
)
_register(
    "vector-capsnet-small",
    "Dynamic routing in a network that trains on a laptop (0.3 M parameters at 32x32, 5 classes).",
    Architecture(filters=64, kernel=9, stride=2, types=8, primary_kernel=5, decoder=(64, 128)),
)
