"""A smooth stand-in for a model: a small network taught the model's answers, to be attacked in its place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.gradient import Iterative
from robustcaps.diagnostics.checks.context import Case, batches
from robustcaps.models.inference import NO_ANSWER, predict

ROUNDS = 2
"""How often it is taught: first on the data, then also on what fooled it (Papernot et al. 2017)."""
NEIGHBOURS = 4
"""How many noisy neighbours of each image it is taught, and how many mixtures with other images."""
EPOCHS = 5


def by_surrogate(case: Case, rows: Tensor) -> Tensor:
    """Return images crafted on surrogates, the first that fools the model, else those of the last round."""
    lessons = _first_lessons(case)
    answers = _ask(case, lessons)
    network = _network(case)
    attack = Iterative(loss="margin", steps=20, random_start=True, early_stop=False)
    best, left = case.images[rows], torch.arange(len(rows), device=rows.device)
    for number in range(ROUNDS):
        _teach(network, lessons, answers, seed=case.seed + number)
        crafted = case.attack(attack, case.rows, model=CountedModel(network, Counts.zeros(case.n)))
        best[left] = crafted[rows[left]]
        left = left[~case.fooled(best[left], rows[left])]
        lessons = torch.cat([lessons, crafted])
        answers = torch.cat([answers, _ask(case, crafted)])
    return best


def _first_lessons(case: Case) -> Tensor:
    """Return the data's images, their neighbours in the ball, and mixtures of two."""
    images, generator = case.all_images, torch.Generator().manual_seed(case.seed)
    lessons = [images]
    for _ in range(NEIGHBOURS):
        noise = torch.rand(images.shape, generator=generator).to(images) * 2.0 - 1.0
        lessons.append((images + _amplitude(case) * noise.sign()).clamp(0.0, 1.0))
        order = torch.randperm(len(images), generator=generator).to(images.device)
        share = torch.rand(len(images), 1, 1, 1, generator=generator).to(images)
        lessons.append(share * images + (1.0 - share) * images[order])
    return torch.cat(lessons)


def _amplitude(case: Case) -> float:
    """Return how far each pixel moves in a neighbour inside the ball."""
    pixels = case.all_images[0].numel()
    return case.eps if case.budget.norm == "linf" else case.eps / pixels**0.5


def _ask(case: Case, images: Tensor) -> Tensor:
    """Return the model's answers; these are all that the surrogate learns of it."""
    with torch.no_grad():
        parts = batches(torch.arange(len(images), device=images.device))
        return torch.cat([predict(case.subject(images[rows])) for _, rows in parts])


def _network(case: Case) -> nn.Module:
    channels, classes = case.all_images.shape[1], case.outputs.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        return nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(32 * 49, classes),
        ).to(case.device)


def _teach(network: nn.Module, lessons: Tensor, answers: Tensor, *, seed: int) -> None:
    known = answers != NO_ANSWER
    lessons, answers = lessons[known], answers[known]
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for _, rows in batches(torch.randperm(len(lessons), generator=generator).to(lessons.device), 64):
            optimiser.zero_grad()
            F.cross_entropy(network(lessons[rows]), answers[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
