"""What is compared: our networks, the same with plain PyTorch routing, the same by the textbook."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from typing import Literal, cast
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import robustcaps as rc
from benchmarks.perf import textbook
from robustcaps.capsules import layers, routing
from robustcaps.models.base import Classifier
from robustcaps.models.matrix_capsnet import MatrixCapsNet
from robustcaps.models.vector_capsnet import VectorCapsNet

Implementation = Literal["robustcaps", "torch backend", "textbook"]

CLASSES, CHANNELS, SIZE = 5, 1, 32


def build(model: str, implementation: Implementation) -> Classifier:
    """Return an untrained network for the images of `batch_of`; all implementations get the same weights."""
    network = rc.build_model(model, classes=CLASSES, channels=CHANNELS, size=SIZE)
    if implementation == "textbook" and isinstance(network, MatrixCapsNet):
        return textbook.matrix_capsnet(network)
    if implementation == "textbook" and isinstance(network, VectorCapsNet):
        return textbook.vector_capsnet(network)
    return cast("Classifier", network)


def backend_of(implementation: Implementation) -> AbstractContextManager[object]:
    """Return the context in which an implementation is to be run."""
    if implementation != "torch backend":
        return contextlib.nullcontext()
    return mock.patch.object(layers, "em_routing", functools.partial(routing.em_routing, backend="torch"))


def batch_of(images: int) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    pixels = torch.rand(images, CHANNELS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    return pixels, torch.arange(images) % CLASSES


@torch.no_grad()
def forward(network: nn.Module, images: Tensor) -> None:
    """Predict."""
    network(images)


def train(network: Classifier, images: Tensor, labels: Tensor) -> None:
    """Do the forward and backward pass of a training step: the gradients of all parameters."""
    network.zero_grad()
    network.training_loss(images, labels).mean().backward()  # type: ignore[no-untyped-call]


def train_layer(layer: nn.Module, children: Tensor) -> None:
    """Do the forward and backward pass of a layer alone: the gradients of its parameters and of its children."""
    layer.zero_grad()
    layer(children.clone().requires_grad_()).square().sum().backward()


def attack(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Do the forward and backward pass of an attack: the gradient of the image, with the parameters frozen."""
    images = images.clone().requires_grad_()
    torch.autograd.grad(F.cross_entropy(network(images), labels), images)
