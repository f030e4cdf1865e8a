"""A model of the collection with its label, its data and its proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import robustcaps as rc
from benchmarks.calibration.networks import EPS, blobs
from benchmarks.calibration.proofs import ProofAttack
from robustcaps.data.base import Data


def binary_blobs(n: int) -> Data:
    """Return blob images of black and white pixels."""
    data = blobs(n, seed=2)
    return Data((data.images > 0.4).float(), data.labels, data.class_names, name="binary blobs")


DATASETS: dict[str, Callable[[int], Data]] = {
    "blobs": lambda n: blobs(n, seed=2),
    "binary blobs": binary_blobs,
    "toys": lambda n: rc.load_data("toys", split="test", limit=n),
}
"""Test images by name, as a function of their number."""


@dataclass(frozen=True)
class LabelledModel:
    """A model, whether it masks its gradients, the attack that proves the label, and what it is attacked on."""

    masked: bool
    build: Callable[[], nn.Module]
    proof: ProofAttack
    data: str = "blobs"
    eps: float = EPS

    def load_data(self, n: int) -> Data:
        """Return the first n test images."""
        return DATASETS[self.data](n)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy, averaged over ten passes."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return float(torch.stack([(model(images).argmax(1) == labels).float().mean() for _ in range(10)]).mean())
