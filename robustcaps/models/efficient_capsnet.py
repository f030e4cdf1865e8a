"""Efficient-CapsNet: few capsules, routed by self-attention without iterations (Mazzia, Salvetti, Chiaberge 2021)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.interventions import UNIFORM, Intervention
from robustcaps.capsules.layers import full_precision
from robustcaps.capsules.routing import (
    exponential_length_logit,
    exponential_squash,
    exponential_squashed_length,
    fully_connected,
    self_attention_routing,
    vector_votes,
)
from robustcaps.errors import UserError
from robustcaps.models.base import ClassifierOutput, TrainingRecipe
from robustcaps.models.normalise import Normalise, build_normaliser
from robustcaps.models.vector_capsnet import CLASS_POSE, ReconstructingCapsNet, pad_batch
from robustcaps.registry import MODELS

CHILDREN = 16
CHILD_POSE = 8
DECODER = (512, 1024)
MIN_SIZE = 11


class SelfAttentionVectorCapsules(nn.Module):
    """Fully connected vector capsules with self-attention routing and a learned prior."""

    def __init__(self, *, children: int, child_pose: int, parents: int, pose: int) -> None:
        super().__init__()
        self.wiring = fully_connected(children)
        scale = (2 / (parents * children * child_pose)) ** 0.5  # that of He et al. (2015), as released
        self.transforms = nn.Parameter(scale * torch.randn(children, parents, pose, child_pose))
        self.prior = nn.Parameter(torch.zeros(parents, children))

    @full_precision
    def votes(self, children: Tensor) -> Tensor:
        """Return the votes (n, parents, children, pose) of capsules (n, children, child pose)."""
        return vector_votes(children, self.transforms)

    @full_precision
    def forward(self, children: Tensor) -> Tensor:
        """Return the parents s (n, parents, pose) before squashing."""
        return self.route(self.votes(children))

    def route(self, votes: Tensor, *, uniform: bool = False) -> Tensor:
        """Return the parents s (n, parents, pose) of votes (n, parents, children, pose)."""
        s, _ = self_attention_routing(votes.unsqueeze(1), self.wiring, prior=self.prior, uniform=uniform)
        return s.squeeze(1)

    def coefficients(self, votes: Tensor) -> Tensor:
        """Return c_ij (n, parents, children) of votes (n, parents, children, pose), without the prior."""
        _, c = self_attention_routing(votes.unsqueeze(1), self.wiring)
        return c.squeeze(1)


class EfficientCapsNet(ReconstructingCapsNet):
    """Four convolutions, 16 primary capsules that see the whole image, one capsule per class, and a decoder."""

    recipe: ClassVar[TrainingRecipe] = TrainingRecipe(epochs=15, batch_size=64, lr=1e-3)

    def __init__(self, *, classes: int, channels: int, size: int, normalise: Normalise, reconstruction: float) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        if size < MIN_SIZE:
            raise UserError(f"efficient-capsnet: images of {size}x{size} are too small; they must be at least 11x11.")
        self.reconstruction = reconstruction
        self.stem = nn.Sequential(
            build_normaliser(normalise),
            *_convolution(channels, 32, kernel=5),
            *_convolution(32, 64, kernel=3),
            *_convolution(64, 64, kernel=3),
            *_convolution(64, CHILDREN * CHILD_POSE, kernel=3, stride=2),
        )
        grid = (size - MIN_SIZE) // 2 + 1
        features = CHILDREN * CHILD_POSE
        self.primary = nn.Conv2d(features, features, kernel_size=grid, groups=features)
        self.class_capsules = SelfAttentionVectorCapsules(
            children=CHILDREN, child_pose=CHILD_POSE, parents=classes, pose=CLASS_POSE
        )
        self.decoder = self.build_decoder(DECODER)

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return the logits of the lengths |v_k|, the lengths and the class capsules v."""
        s: Tensor = self.class_capsules(self._children(images))[: len(images)]
        return ClassifierOutput(
            logits=exponential_length_logit(s), scores=exponential_squashed_length(s), poses=exponential_squash(s)
        )

    def votes(self, images: Tensor) -> Tensor:
        """Return the votes for the class capsules (n, classes, children, 16)."""
        return self.class_capsules.votes(self._children(images))[: len(images)]

    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return log |v_j| of v_j = squash(sum_i v_ij / classes), and the logits of `classify`."""
        votes = self.votes(images)
        with torch.no_grad():
            s = self.class_capsules.route(votes)
        unrouted = exponential_length_logit(votes.sum(dim=2) / self.classes)
        return F.logsigmoid(unrouted), exponential_length_logit(s)

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """Uniform coefficients; the learned prior stays as it is."""
        return (UNIFORM,)

    def intervened_logits(self, images: Tensor, intervention: Intervention) -> Tensor:
        """Return the logits (n, classes) with changed routing."""
        s = self.class_capsules.route(self.votes(images), uniform=intervention.uniform)
        return exponential_length_logit(s)

    def routing_statistics(self, images: Tensor) -> dict[str, dict[str, Tensor]]:
        """Return the entropy of the coefficients, and the lengths of the class capsules."""
        votes = self.votes(images)
        lengths = exponential_squashed_length(self.class_capsules.route(votes))
        c = self.class_capsules.coefficients(votes)
        entropy = torch.special.entr(c).sum(dim=1).mean(dim=1) / math.log(self.classes)
        return {"classes": {"entropy": entropy, "activations": lengths}}

    def _children(self, images: Tensor) -> Tensor:
        """Return the primary capsules (n, 16, 8) of a padded batch."""
        features = self.primary(self.stem(pad_batch(images)))
        return exponential_squash(features.view(-1, CHILDREN, CHILD_POSE).to(self.primary.weight))


def _convolution(channels: int, filters: int, *, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    """Return a convolution with ReLU and batch normalisation, in the order of the released code."""
    layer = nn.Conv2d(channels, filters, kernel_size=kernel, stride=stride)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.get_parameter("bias"))
    return layer, nn.ReLU(inplace=True), nn.BatchNorm2d(filters)


@MODELS.register("efficient-capsnet")
def efficient_capsnet(
    *,
    classes: int,
    channels: int,
    size: int,
    normalise: Normalise = "image",
    reconstruction: Annotated[
        float, Field(ge=0, description="weight of the summed squared reconstruction error")
    ] = 0.0005,
) -> EfficientCapsNet:
    """Efficient-CapsNet of Mazzia et al. 2021, self-attention (162 K parameters at 28x28, without the decoder)."""
    return EfficientCapsNet(
        classes=classes, channels=channels, size=size, normalise=normalise, reconstruction=reconstruction
    )
