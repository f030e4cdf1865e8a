"""Convolutional baselines: that of Hinton et al. (2018), and one as small as the small matrix capsule network."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from robustcaps.capsules.losses import present_classes
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier, ClassifierOutput, TrainingRecipe
from robustcaps.models.normalise import Normalise, build_normaliser
from robustcaps.registry import MODELS

Width = Annotated[int, Field(ge=1, description="channels of the first convolution; the second has twice as many")]
Hidden = Annotated[int, Field(ge=1, description="units of the fully connected layer")]
Dropout = Annotated[float, Field(ge=0, lt=1, description="share of hidden units dropped in training")]


class CNN(Classifier):
    """Two 5x5 convolutions with ReLU and 2x2 max-pooling, a hidden layer with dropout, softmax."""

    recipe: ClassVar[TrainingRecipe] = TrainingRecipe(epochs=15, batch_size=64, lr=2e-3)
    supports_multi_label: ClassVar[bool] = True

    def __init__(
        self, *, classes: int, channels: int, size: int, normalise: Normalise, width: int, hidden: int, dropout: float
    ) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        grid = size // 4
        if grid < 1:
            raise UserError(f"cnn: images of {size}x{size} are too small; they must be at least 4x4.")
        self.layers = nn.Sequential(
            build_normaliser(normalise),
            nn.Conv2d(channels, width, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * grid * grid, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )
        self.layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # halves the time of convolutions on a CPU

    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return the logits and their softmax."""
        logits = self.layers(images)
        return ClassifierOutput(logits=logits, scores=logits.softmax(dim=1))

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:  # noqa: ARG002
        """Return the cross-entropy of each sample (n,); several objects share the probability equally."""
        if labels.ndim == 1:
            return F.cross_entropy(self(images), labels, reduction="none")
        present = present_classes(labels, self.classes).float()
        return F.cross_entropy(self(images), present / present.sum(1, keepdim=True), reduction="none")


def _register(name: str, summary: str, *, width: int, hidden: int, dropout: float) -> None:
    """Register a CNN whose options have these defaults."""

    def build(
        *,
        classes: int,
        channels: int,
        size: int,
        normalise: Normalise = "image",
        width: Width = width,
        hidden: Hidden = hidden,
        dropout: Dropout = dropout,
    ) -> CNN:
        return CNN(
            classes=classes,
            channels=channels,
            size=size,
            normalise=normalise,
            width=width,
            hidden=hidden,
            dropout=dropout,
        )

    build.__doc__ = summary
    MODELS.add(name, build)


_register(
    "cnn",
    "Baseline of Hinton et al. 2018: two 5x5 convolutions and a hidden layer (4.2 M parameters at 32x32).",
    width=32,
    hidden=1024,
    dropout=0.5,
)
_register(
    "cnn-small",
    "Baseline with as many parameters as matrix-capsnet-small (67 K at 32x32).",
    width=16,
    hidden=26,
    dropout=0.2,
)
