"""The calibration task and its networks: blob images, small classifiers, and their training."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradient_based.iterative import IterativeAttack
from robustcaps.data.base import Data
from robustcaps.utils.sample_random import Draws

EPS = 0.1
BLOB_CENTRES = torch.tensor([[7.0, 7.0], [7.0, 20.0], [20.0, 7.0], [20.0, 20.0], [13.5, 13.5]])


def blobs(n: int, *, seed: int) -> Data:
    """Return images with a bright blob near one of five places (the class), two faint blobs, and noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % len(BLOB_CENTRES)
    centres = BLOB_CENTRES[labels] + 3.0 * torch.rand(n, 2, generator=generator) - 1.5
    heights = 0.4 + 0.2 * torch.rand(n, generator=generator)
    images = 0.2 + heights[:, None, None] * _gaussians(centres)
    for _ in range(2):
        faint = 0.2 * torch.rand(n, generator=generator)
        images += faint[:, None, None] * _gaussians(28.0 * torch.rand(n, 2, generator=generator))
    images += 0.05 * torch.randn(images.shape, generator=generator)
    return Data(images.clamp(0.0, 1.0)[:, None], labels, tuple("abcde"), name="blobs")


def _gaussians(centres: Tensor) -> Tensor:
    grid = torch.arange(28.0)
    rows = (grid[None, :] - centres[:, :1]).square()
    columns = (grid[None, :] - centres[:, 1:]).square()
    return torch.exp(-(rows[:, :, None] + columns[:, None, :]) / (2 * 2.5**2))


def small_cnn(activation: Callable[[], nn.Module] = nn.ReLU, *, norm: bool = False, pool: bool = False) -> nn.Module:
    """Return a network of two convolutions and a linear layer."""
    shrink = [nn.Conv2d(8, 16, 5, padding=2), nn.MaxPool2d(2)] if pool else [nn.Conv2d(8, 16, 5, stride=2, padding=2)]
    middle = [nn.BatchNorm2d(8)] if norm else []
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), *middle, activation()),
        *(*shrink, activation(), nn.Flatten(), nn.Linear(16 * 49, 5)),
    )


def mlp() -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 5))


def train(
    build: Callable[[], nn.Module],
    *,
    seed: int = 0,
    epochs: int = 5,
    smoothing: float = 0.0,
    temperature: float = 1.0,
    noise: float = 0.0,
    adversary: float = 0.0,
    weight_decay: float = 0.0,
) -> nn.Module:
    """Train a network on 1000 blob images with Adam; `adversary` is the eps of adversarial training."""
    data = blobs(1000, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=weight_decay)
        for _ in range(epochs):
            for rows in torch.randperm(len(data)).split(50):  # type: ignore[no-untyped-call]
                images, labels = data.images[rows], data.labels[rows]
                images = images + noise * torch.randn_like(images)
                if adversary:
                    images = margin_pgd(model, images, labels, adversary, steps=5)
                optimiser.zero_grad()
                F.cross_entropy(model(images) / temperature, labels, label_smoothing=smoothing).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return model.eval()


def margin_pgd(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, *, steps: int, restarts: int = 1, eot: int = 1
) -> Tensor:
    """Return adversarial examples by PGD on the margin."""
    rows = torch.arange(len(images))
    pgd = IterativeAttack(
        loss="margin", steps=steps, random_start=True, restarts=restarts, eot=eot, early_stop=eot == 1
    )
    counted = CountedModel(model, Counts.zeros(len(images)))
    return pgd.run(counted, images, Untargeted(labels), Budget(eps), Draws(0, rows)).detach()


@functools.cache
def plain_cnn() -> nn.Module:
    """Return the network that most models of the collection are based on."""
    return train(small_cnn)


@functools.cache
def other_cnn() -> nn.Module:
    """Return the same network with another initialisation."""
    return train(small_cnn, seed=7)


@functools.cache
def noise_trained_cnn() -> nn.Module:
    """Return the same network, trained with Gaussian noise."""
    return train(small_cnn, noise=0.3)
