"""Adversarial training (Madry et al. 2018): the network learns from the worst images found near those of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradient import Iterative
from robustcaps.models.cards import Settings
from robustcaps.models.inference import eval_mode
from robustcaps.training.accuracy import CHUNK, predict, share_right
from robustcaps.utils.sample_random import Draws

RISE = 0.3
"""The share of a training in which eps rises from 0, linearly: a large one at once may keep a network from learning."""
EXAM_STEPS = 20
"""Gradient steps of the attack that cards report."""
EXAM_SAMPLES = 1000
"""So many test samples, the first ones, it is run on."""


@dataclass(frozen=True)
class Adversary:
    """Projected gradients from a random point of the linf ball, in steps of 2.5 eps / steps.

    They climb the cross-entropy of the logits, whatever the network is trained on: margin and spread loss are flat once
    their margin is met, and an adversary that stands still teaches nothing.
    """

    eps: float
    """The radius of the ball, in pixels of [0,1]."""
    steps: int

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Return the adversary that settings ask for, if any."""
        if settings.adversary_eps is None or settings.adversary_steps is None:
            return None
        return cls(settings.adversary_eps, settings.adversary_steps)

    def perturb(self, model: nn.Module, images: Tensor, labels: Tensor, *, progress: float, seed: int) -> Tensor:
        """Return what a batch is replaced by when so much of the training (0 to 1) is over.

        All samples go all the way: one that stopped where it first fools the network would be a weaker teacher.
        """
        attack = Iterative(steps=self.steps, random_start=True, early_stop=False)
        draws = Draws(seed, torch.arange(len(images), device=images.device))
        return _attacked(attack, model, images, labels, Budget(self.eps * min(1.0, progress / RISE)), draws)

    def robust_accuracy(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, seed: int, steps: int | None = None
    ) -> float:
        """Return the accuracy at full eps, after so many steps (default: those of the training)."""
        attack = Iterative(steps=steps or self.steps, random_start=True)
        labels = labels.to(images.device)
        rows = torch.split(torch.arange(len(images), device=images.device), CHUNK)
        found = [_attacked(attack, model, images[i], labels[i], Budget(self.eps), Draws(seed, i)) for i in rows]
        return share_right(predict(model, torch.cat(found)), labels.cpu())


def _attacked(
    attack: Iterative, model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, draws: Draws
) -> Tensor:
    """Return the attacked images; the model is asked as it would answer after the training, without dropout."""
    with eval_mode(model):
        return attack.run(CountedModel(model, Counts.zeros(len(images))), images, Untargeted(labels), budget, draws)
