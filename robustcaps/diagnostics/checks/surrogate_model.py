"""A black-box transfer attack: a small surrogate network is trained on the model's predictions and attacked instead."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient_based.iterative import IterativeAttack
from robustcaps.diagnostics.checks.context import DiagnosisContext, batches
from robustcaps.models.inference import NO_ANSWER, predict

ROUNDS = 2
"""Rounds of training: first on the data, then also on the surrogate's adversarial examples (Papernot et al. 2017)."""
NEIGHBOURS = 4
"""Number of noisy neighbours, and of mixtures with other images, per training image."""
EPOCHS = 5


def attack_via_surrogate(context: DiagnosisContext, rows: Tensor) -> Tensor:
    """Return images crafted on the surrogate: the first that fools the model, else those of the last round."""
    images = _training_images(context)
    labels = _predicted_labels(context, images)
    surrogate = _build_surrogate(context)
    attack = IterativeAttack(loss="margin", steps=20, random_start=True, early_stop=False)
    best, remaining = context.images[rows], torch.arange(len(rows), device=rows.device)
    for number in range(ROUNDS):
        _train(surrogate, images, labels, seed=context.seed + number)
        counted = CountedModel(surrogate, Counts.zeros(context.n))
        adversarial = context.run_attack(attack, context.rows, model=counted)
        best[remaining] = adversarial[rows[remaining]]
        remaining = remaining[~context.is_fooled(best[remaining], rows[remaining])]
        images = torch.cat([images, adversarial])
        labels = torch.cat([labels, _predicted_labels(context, adversarial)])
    return best


def _training_images(context: DiagnosisContext) -> Tensor:
    """Return the images of the data, noisy neighbours inside the ball, and mixtures of two images."""
    images, generator = context.all_images, torch.Generator().manual_seed(context.seed)
    parts = [images]
    for _ in range(NEIGHBOURS):
        noise = torch.rand(images.shape, generator=generator).to(images) * 2.0 - 1.0
        parts.append((images + _noise_amplitude(context) * noise.sign()).clamp(0.0, 1.0))
        order = torch.randperm(len(images), generator=generator).to(images.device)
        share = torch.rand(len(images), 1, 1, 1, generator=generator).to(images)
        parts.append(share * images + (1.0 - share) * images[order])
    return torch.cat(parts)


def _noise_amplitude(context: DiagnosisContext) -> float:
    """Return the change per pixel that keeps a noisy neighbour inside the ball."""
    pixels = context.all_images[0].numel()
    return context.eps if context.budget.norm == "linf" else context.eps / pixels**0.5


def _predicted_labels(context: DiagnosisContext, images: Tensor) -> Tensor:
    """Return the model's predictions, which are all that the surrogate learns from."""
    with torch.no_grad():
        parts = batches(torch.arange(len(images), device=images.device))
        return torch.cat([predict(context.shielded(images[rows])) for _, rows in parts])


def _build_surrogate(context: DiagnosisContext) -> nn.Module:
    channels, classes = context.all_images.shape[1], context.outputs.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(32 * 49, classes),
        ).to(context.device)


def _train(surrogate: nn.Module, images: Tensor, labels: Tensor, *, seed: int) -> None:
    labelled = labels != NO_ANSWER
    images, labels = images[labelled], labels[labelled]
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(surrogate.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for _, rows in batches(torch.randperm(len(images), generator=generator).to(images.device), 64):
            optimiser.zero_grad()
            F.cross_entropy(surrogate(images[rows]), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
