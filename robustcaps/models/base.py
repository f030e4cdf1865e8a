"""What a zoo model is: raw images in, unsaturated logits out, and the paper's own scores and training loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn


@dataclass(frozen=True)
class Reading:
    """Everything one forward pass of a zoo model tells about its images."""

    logits: Tensor
    """(n, classes), unsaturated: what attacks and predictions use."""
    scores: Tensor
    """(n, classes) in [0,1]: probabilities, capsule lengths or activations, as the paper defines them."""
    poses: Tensor | None = None
    """(n, classes, pose): the class capsules, where there are any."""


@dataclass(frozen=True)
class Recipe:
    """How a zoo model is trained unless the user says otherwise: Adam, warm-up, then a cosine down to `final_lr`."""

    epochs: int
    batch_size: int
    lr: float
    warmup_steps: int = 200
    final_lr: float = 0.02
    """As a fraction of `lr`."""
    clip: float | None = None
    """Largest gradient norm; None clips nothing."""
    weight_decay: float = 0.0


class Classifier(nn.Module, ABC):
    """Base of the zoo. `forward` gives logits; `read` everything; `training_loss` what the model is trained on."""

    recipe: ClassVar[Recipe]
    learns_several: ClassVar[bool] = False
    """Whether `training_loss` also takes labels (n, objects) of images that show several objects at once."""

    def __init__(self, *, classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.classes = classes
        self.channels = channels
        self.size = size

    @abstractmethod
    def read(self, images: Tensor) -> Reading:
        """Run the network once and return logits, scores and poses."""

    def vital_signs(self, images: Tensor) -> dict[str, float]:  # noqa: ARG002
        """Return numbers to watch while training, measured on images in eval mode; none unless a model has some."""
        return {}

    @abstractmethod
    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:
        """Return the loss of each sample (n,); `progress` in [0,1] moves schedules such as the spread margin."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of raw images in [0,1]."""
        return self.read(images).logits

    def scores(self, images: Tensor) -> Tensor:
        """Return the paper's class scores (n, classes) in [0,1]."""
        return self.read(images).scores


class CapsuleClassifier(Classifier):
    """A classifier whose last layer routes: it can also show the votes that are routed."""

    @abstractmethod
    def votes(self, images: Tensor) -> Tensor:
        """Return what every child capsule predicts for every class capsule (n, classes, children, pose)."""

    @abstractmethod
    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes' logits as all votes weigh the same, and the routed ones without gradient, from one pass.

        (n, classes) each: gradients through the first bypass the routing of the class capsules (Gu et al. 2021).
        """
