"""What a gradient attack climbs: one number per sample, to be maximised, and the logits where they come for free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.attacks.counted import CountedModel
from robustcaps.attacks.goals import Goal

LossName = Literal["ce", "ce-scores", "training", "margin"]
Loss = Callable[[CountedModel, Tensor, Goal], tuple[Tensor, Tensor | None]]
"""(model, images, goal) -> (objective (n,) to maximise, logits (n, classes) if this pass computed them)."""


def cross_entropy_on_logits(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the cross-entropy CE of the unsaturated logits, as log(e^CE - 1).

    The two rise together and have the same gradient direction, but this one's gradient never underflows: a network
    that is very sure of its answer does not look robust for that reason alone.
    """
    logits = model(images)
    return goal.sign * log_odds_against(logits, goal.classes), logits


def cross_entropy_on_scores(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the cross-entropy with the scores in [0,1] taken as logits, as attacks on published capsule code do."""
    reading = model.read(images)
    return goal.sign * F.cross_entropy(reading.scores, goal.classes, reduction="none"), reading.logits


def own_training_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, None]:
    """Climb the loss the model was trained on (margin, spread, ...), which is flat once its margin is met."""
    return goal.sign * model.training_loss(images, goal.classes), None


def logit_margin(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the best other logit minus the class's own: cannot saturate (Carlini and Wagner 2017)."""
    logits = model(images)
    own = logits.gather(1, goal.classes[:, None])[:, 0]
    return goal.sign * (_others(logits, goal.classes).amax(1) - own), logits


def log_odds_against(logits: Tensor, classes: Tensor) -> Tensor:
    """Return log((1-p)/p) of the class's softmax p, which is log(e^CE - 1)."""
    own = logits.gather(1, classes[:, None])[:, 0]
    return torch.logsumexp(_others(logits, classes), 1) - own


def _others(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the logits with the class's own one at minus infinity."""
    return logits.scatter(1, classes[:, None], -torch.inf)


LOSSES: dict[LossName, Loss] = {
    "ce": cross_entropy_on_logits,
    "ce-scores": cross_entropy_on_scores,
    "training": own_training_loss,
    "margin": logit_margin,
}
