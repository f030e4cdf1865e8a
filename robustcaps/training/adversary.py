"""Adversarial training (Madry et al. 2018): every batch is replaced by adversarial examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradient_based.iterative import IterativeAttack
from robustcaps.models.cards import TrainingSettings
from robustcaps.models.inference import eval_mode
from robustcaps.training.accuracy import CHUNK, accuracy_score, predict_classes
from robustcaps.utils.sample_random import Draws

EPS_WARMUP = 0.3
"""Fraction of the training in which eps grows linearly from 0: a large eps at the start can prevent learning."""
CARD_ATTACK_STEPS = 20
"""Gradient steps of the attack that measures a model card's robust accuracy."""
CARD_ATTACK_SAMPLES = 1000
"""Number of test samples, the first ones, that it attacks."""


@dataclass(frozen=True)
class Adversary:
    """PGD in the linf ball with a random start and steps of size 2.5 eps / steps.

    It maximises the cross-entropy of the logits, whatever the training loss is: margin and spread loss have no gradient
    once their margin is met.
    """

    eps: float
    """Radius of the ball, in pixel values of [0,1]."""
    steps: int

    @classmethod
    def from_settings(cls, settings: TrainingSettings) -> Self | None:
        """Return the adversary of a training, or None for standard training."""
        if settings.adversary_eps is None or settings.adversary_steps is None:
            return None
        return cls(settings.adversary_eps, settings.adversary_steps)

    def perturb(self, model: nn.Module, images: Tensor, labels: Tensor, *, elapsed: float, seed: int) -> Tensor:
        """Return adversarial examples of a batch, when a fraction `elapsed` of the training is over.

        Every sample takes all steps: stopping at the first misclassification would weaken the examples.
        """
        attack = IterativeAttack(steps=self.steps, random_start=True, early_stop=False)
        draws = Draws(seed, torch.arange(len(images), device=images.device))
        return _run_attack(attack, model, images, labels, Budget(self.eps * min(1.0, elapsed / EPS_WARMUP)), draws)

    def robust_accuracy(
        self, model: nn.Module, images: Tensor, labels: Tensor, *, seed: int, steps: int | None = None
    ) -> float:
        """Return the accuracy under attack at full eps, with `steps` gradient steps (default: as in training)."""
        attack = IterativeAttack(steps=steps or self.steps, random_start=True)
        labels = labels.to(images.device)
        chunks = torch.split(torch.arange(len(images), device=images.device), CHUNK)
        adversarial = [
            _run_attack(attack, model, images[rows], labels[rows], Budget(self.eps), Draws(seed, rows))
            for rows in chunks
        ]
        return accuracy_score(predict_classes(model, torch.cat(adversarial)), labels.cpu())


def _run_attack(
    attack: IterativeAttack, model: nn.Module, images: Tensor, labels: Tensor, budget: Budget, draws: Draws
) -> Tensor:
    """Return the attacked images; the model is in eval mode, as in an evaluation."""
    with eval_mode(model):
        return attack.run(CountedModel(model, Counts.zeros(len(images))), images, Untargeted(labels), budget, draws)
