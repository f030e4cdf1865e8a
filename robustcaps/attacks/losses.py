"""Losses that gradient attacks maximise, one value per sample.

With logits z, the class y of the goal (the label, or the target) and its softmax probability p = softmax(z)_y:

| name        | loss                                          | reference                        |
|-------------|-----------------------------------------------|----------------------------------|
| `ce`        | CE = -log p                                   | Goodfellow et al. (2015)         |
| `log-odds`  | log(e^CE - 1) = log((1 - p) / p)              | see below                        |
| `ce-scores` | -log softmax(s)_y, s the scores in [0,1]      | attacks on published capsule code |
| `training`  | the loss that the model was trained on        | Hinton et al. (2018), section 5  |
| `margin`    | max_{k != y} z_k - z_y                        | Carlini and Wagner (2017), f_6   |
| `dlr`       | (max_{k != y} z_k - z_y) / (z_(1) - z_(3))    | Croce and Hein (2020), eq. 6, 7  |

An untargeted attack maximises the loss of the label; a targeted one minimises the loss of the target.

Why `log-odds` is the default: the gradient of the cross-entropy in the logits is softmax(z) - onehot(y), whose entries
are at most 1 - p. In float32 the entry at y is rounded to 0 once 1 - p < 6e-8, and all of them underflow to 0 in more
confident models. An attack then stands still and the model appears robust, which is gradient masking. The log-odds
equal logsumexp_{k != y} z_k - z_y. They rise with CE and have the same gradient direction, since
d/dCE log(e^CE - 1) = 1 / (1 - e^-CE) > 0, but they do not saturate: their gradient is -1 at y, and a softmax over the
other classes, which sums to 1 however confident the model is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal, Targeted, TowardsClass
from robustcaps.errors import UserError

DLR_CLASSES = 4
"""Classes that the targeted DLR loss needs."""
LossName = Literal["log-odds", "ce", "ce-scores", "training", "margin", "dlr"]
Loss = Callable[[CountedModel, Tensor, Goal], tuple[Tensor, Tensor | None]]
"""(model, images, goal) -> (objective (n,) to maximise, logits (n, classes) if this pass computed them)."""


def log_odds_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Log-odds against the class, log(e^CE - 1): the cross-entropy without its underflow in confident models."""
    logits = model(images)
    return goal.sign * log_odds(logits, goal.classes), logits


def cross_entropy_loss(
    model: CountedModel, images: Tensor, goal: Goal, *, logit_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the logits, -log softmax(logit_scale * z)_y; its gradient underflows in confident models."""
    logits = model(images)
    return goal.sign * F.cross_entropy(logit_scale * logits, goal.classes, reduction="none"), logits


def score_cross_entropy_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Cross-entropy with the scores in [0,1] used as logits, as attacks on published capsule code do."""
    output = model.classify(images)
    return goal.sign * F.cross_entropy(output.scores, goal.classes, reduction="none"), output.logits


def training_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, None]:
    """The loss that the model was trained on (margin, spread, ...), which is flat once its margins are met."""
    return goal.sign * model.training_loss(images, goal.classes), None


def margin_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Logit margin: the largest other logit minus that of the class; it does not saturate (Carlini and Wagner 2017)."""
    logits = model(images)
    return _signed_margin(logits, goal), logits


def dlr_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Difference of logits ratio: the logit margin, invariant to the scale of the logits (Croce and Hein 2020).

    With sorted logits z_(1) >= z_(2) >= ..., the margin is divided by z_(1) - z_(3), or for targets by
    z_(1) - (z_(3) + z_(4)) / 2. A targeted goal uses the margin to the best other class instead of the label, because
    the target has to beat all of them.
    """
    logits = model(images)
    needed = DLR_CLASSES if isinstance(goal, Targeted) else 3
    if logits.shape[1] < needed:
        kind = "a targeted goal" if needed == DLR_CLASSES else "an untargeted goal"
        raise UserError(f"loss 'dlr': {kind} needs {needed} classes or more, but the model has {logits.shape[1]}.")
    ranked = logits.topk(needed, dim=1).values
    spread = ranked[:, 0] - ranked[:, 2:].mean(1)
    return _signed_margin(logits, goal) / spread.clamp_min(1e-12), logits


def targeted_dlr_loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
    """Targeted DLR, -(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2), of a goal `TowardsClass` t (Croce and Hein 2020)."""
    if not isinstance(goal, TowardsClass):
        raise TypeError("the targeted DLR loss needs a goal with a class to go to.")
    logits = model(images)
    if logits.shape[1] < DLR_CLASSES:
        raise UserError(f"targeted DLR loss: needs {DLR_CLASSES} classes or more, but the model has {logits.shape[1]}.")
    ranked = logits.topk(DLR_CLASSES, dim=1).values
    spread = ranked[:, 0] - ranked[:, 2:].mean(1)
    own, other = (logits.gather(1, classes[:, None])[:, 0] for classes in (goal.classes, goal.towards))
    return (other - own) / spread.clamp_min(1e-12), logits


def _signed_margin(logits: Tensor, goal: Goal) -> Tensor:
    """Return the margin by which the goal is reached, (n,); negative where it is not."""
    own = logits.gather(1, goal.classes[:, None])[:, 0]
    return goal.sign * (_other_logits(logits, goal.classes).amax(1) - own)


def log_odds(logits: Tensor, classes: Tensor) -> Tensor:
    """Return log((1 - p) / p) for the softmax probability p of each sample's class, (n,)."""
    own = logits.gather(1, classes[:, None])[:, 0]
    return torch.logsumexp(_other_logits(logits, classes), 1) - own


def _other_logits(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the logits with that of each sample's class set to minus infinity."""
    return logits.scatter(1, classes[:, None], -torch.inf)


LOSSES: dict[LossName, Loss] = {
    "log-odds": log_odds_loss,
    "ce": cross_entropy_loss,
    "ce-scores": score_cross_entropy_loss,
    "training": training_loss,
    "margin": margin_loss,
    "dlr": dlr_loss,
}


def resolve_loss(loss: LossName | Loss) -> Loss:
    """Return a loss by name; return a loss function unchanged."""
    return LOSSES[loss] if isinstance(loss, str) else loss
