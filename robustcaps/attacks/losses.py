"""What a gradient attack climbs: one number per sample, to be maximised, and the logits where they come for free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal, Targeted
from robustcaps.errors import UserError

LossName = Literal["ce", "plain-ce", "ce-scores", "training", "margin", "dlr"]
Loss = Callable[[CountedModel, Tensor, Goal], tuple[Tensor, Tensor | None]]
"""(model, images, goal) -> (objective (n,) to maximise, logits (n, classes) if this pass computed them)."""


def cross_entropy_on_logits(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the cross-entropy CE of the unsaturated logits, as log(e^CE - 1).

    The two rise together and have the same gradient direction, but this one's gradient never underflows: a network
    that is very sure of its answer does not look robust for that reason alone.
    """
    logits = model(images)
    return goal.sign * log_odds_against(logits, goal.classes), logits


def plain_cross_entropy(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the cross-entropy itself, as other libraries do: its gradient is 0 in float32 where a network is sure."""
    logits = model(images)
    return goal.sign * F.cross_entropy(logits, goal.classes, reduction="none"), logits


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
    return _margin(logits, goal), logits


def difference_of_logits_ratio(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Climb the logit margin over a difference of ranked logits z: the scale of the logits cancels.

    The difference is z_1 - z_3, or z_1 - (z_3 + z_4)/2 for targets (Croce and Hein 2020, eq. 6 and 7). A targeted goal
    compares with the best other class, not with the label alone: the target has to beat them all.
    """
    logits = model(images)
    needed = 4 if isinstance(goal, Targeted) else 3
    if logits.shape[1] < needed:
        aim = "a targeted goal" if needed == 4 else "an untargeted goal"
        raise UserError(f"loss 'dlr': {aim} needs {needed} classes or more, but the model has {logits.shape[1]}.")
    ranked = logits.topk(needed, dim=1).values
    spread = ranked[:, 0] - ranked[:, 2:].mean(1)
    return _margin(logits, goal) / spread.clamp_min(1e-12), logits


def _margin(logits: Tensor, goal: Goal) -> Tensor:
    """Return by how much the goal is reached: untargeted best other logit minus own, targeted the opposite."""
    own = logits.gather(1, goal.classes[:, None])[:, 0]
    return goal.sign * (_others(logits, goal.classes).amax(1) - own)


def log_odds_against(logits: Tensor, classes: Tensor) -> Tensor:
    """Return log((1-p)/p) of the class's softmax p, which is log(e^CE - 1)."""
    own = logits.gather(1, classes[:, None])[:, 0]
    return torch.logsumexp(_others(logits, classes), 1) - own


def _others(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the logits with the class's own one at minus infinity."""
    return logits.scatter(1, classes[:, None], -torch.inf)


LOSSES: dict[LossName, Loss] = {
    "ce": cross_entropy_on_logits,
    "plain-ce": plain_cross_entropy,
    "ce-scores": cross_entropy_on_scores,
    "training": own_training_loss,
    "margin": logit_margin,
    "dlr": difference_of_logits_ratio,
}


def loss_named(loss: LossName | Loss) -> Loss:
    """Return the loss of that name; a loss itself stays what it is."""
    return LOSSES[loss] if isinstance(loss, str) else loss
