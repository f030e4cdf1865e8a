"""A tiny model and tiny data to test training with; `python -m tests.tiny FOLDER EPOCH STEP` trains and dies there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.data.base import Data
from robustcaps.models.base import Classifier, ClassifierOutput, TrainingRecipe
from robustcaps.registry import DATASETS, MODELS
from robustcaps.training import TrainingProgress, train

SIDE, SIZE, CLASSES = 12, 8, 3
RECIPE = TrainingRecipe(epochs=4, batch_size=16, lr=0.02, warmup_steps=3, clip=5.0)


class Tiny(Classifier):
    """Dropout, batch norm (with its counters) and a linear layer: everything random or stateful that training has."""

    recipe: ClassVar[TrainingRecipe] = RECIPE

    def __init__(self, *, width: int, fault: str, classes: int, channels: int, size: int) -> None:
        super().__init__(classes=classes, channels=channels, size=size)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(width * ((size - 1) // 2) ** 2, classes),
        )
        self.fault = fault
        favourite = torch.eye(classes)[1] * 1e6 * (fault == "collapse")
        self.register_buffer("favourite", favourite, persistent=False)

    def classify(self, images: Tensor) -> ClassifierOutput:
        logits = self.layers(images) + self.favourite
        return ClassifierOutput(logits=logits, scores=logits.softmax(dim=1))

    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:
        assert images.shape[1:] == (self.channels, self.size, self.size)
        loss = F.cross_entropy(self(images), labels, reduction="none")
        if self.fault == "loss" and progress > 0.5:
            return loss * torch.nan
        if self.fault == "gradient" and progress > 0.5:
            return loss + (loss * 0).sqrt()
        return loss


class Looker(Tiny):
    """Sets its weights by a look at the images, and asks for its own learning rates."""

    def initialise(self, images: Tensor) -> None:
        *_, bias = self.parameters()
        bias.data.fill_(images.mean() + torch.rand(1).item())

    def parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        *first, weight, bias = self.parameters()
        return [{"params": [weight, bias], "lr": lr * bias.mean().item()}, {"params": first}]


def tiny(*, classes: int, channels: int, size: int, width: int = 4, fault: str = "") -> Tiny:
    """Tiny network."""
    return Tiny(width=width, fault=fault, classes=classes, channels=channels, size=size)


def looker(*, classes: int, channels: int, size: int, width: int = 4) -> Looker:
    """Tiny network with an initialisation of its own."""
    return Looker(width=width, fault="", classes=classes, channels=channels, size=size)


def untrainable(*, classes: int, channels: int, size: int) -> nn.Module:
    """Network without a loss of its own."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))


def bars(*, split: str, limit: int | None = None, crop: bool = True, brightness: float = 1.0, **_: object) -> Data:
    """Lying bars, standing bars and nothing, in noise; four instances of each class."""
    n = min(limit or 96, 96)
    data = draw(n, seed={"train": 1, "test": 2}[split], side=SIDE)
    data = replace(data, images=data.images * brightness)
    images = data.images[..., 2:-2, 2:-2] if crop else data.images
    factors = pd.DataFrame({"instance": torch.arange(n).div(CLASSES, rounding_mode="floor").remainder(4).numpy()})
    return Data(images, data.labels, data.class_names, name="bars", split=split, size=SIZE, factors=factors)


def plain(*, split: str, limit: int | None = None, **_: object) -> Data:
    """The same without instances, at the size that models see."""
    return draw(min(limit or 96, 96), seed={"train": 1, "test": 2}[split], side=SIZE)


def draw(n: int, *, seed: int, side: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = torch.rand(n, 1, side, side, generator=generator) * 0.3
    middle = slice(side // 2 - 1, side // 2 + 1)
    images[labels == 0, :, middle, :] += 0.6
    images[labels == 1, :, :, middle] += 0.6
    return Data(images, labels, ("lying", "standing", "nothing"), name="plain", size=side)


def register() -> None:
    models: dict[str, Callable[..., nn.Module]] = {"tiny": tiny, "looker": looker, "untrainable": untrainable}
    for name, model in models.items():
        MODELS.add(name, model)
    for name, dataset in {"bars": bars, "plain": plain}.items():
        DATASETS.add(name, dataset)


class KillAt(TrainingProgress):
    """Ends the process as `kill -9` does, at a step of an epoch."""

    def __init__(self, epoch: int, step: int) -> None:
        self.when = (epoch, step)

    def step(self, epoch: int, step: int, steps: int, loss: float, lr: float) -> None:
        if (epoch, step) == self.when:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    register()
    train("tiny", data="bars", out=Path(sys.argv[1]), progress=KillAt(int(sys.argv[2]), int(sys.argv[3])))
