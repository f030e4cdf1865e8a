"""DeepFool: repeated steps to the nearest linearised decision boundary (Moosavi-Dezfooli et al. 2016)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal, Untargeted
from robustcaps.attacks.minimum_norm.base import MinimumNormAttack
from robustcaps.attacks.norms import NORMS, Norm, NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

STEP_MARGIN = 1e-4
"""Added to the length of every step, as in the authors' code, to cross the boundary."""


class DeepFool(MinimumNormAttack):
    """Step to the nearest linearised decision boundary until the prediction changes."""

    goals = (Untargeted,)

    def __init__(self, *, steps: int, overshoot: float) -> None:
        self.steps = steps
        self.overshoot = overshoot
        self.passes = 9.0 * steps  # assumes five classes; most samples need only a few steps

    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the first misclassified iterate x + (1 + overshoot) sum r_i, or the clean image."""
        found, current, total = images.clone(), images.clone(), torch.zeros_like(images)
        active = torch.arange(len(images), device=images.device)
        for step in range(self.steps + 1):
            labels = goal.classes[active]
            margins, slopes, logits = linearise(model.select(active), current[active], labels)
            unsuccessful = ~goal.select(active).reached(logits.argmax(1))
            found[active[~unsuccessful]] = current[active[~unsuccessful]]
            active = active[unsuccessful]
            if len(active) == 0 or step == self.steps:
                break
            total[active] += _step_to_nearest_boundary(margins[:, unsuccessful], slopes[:, unsuccessful], NORMS[norm])
            current[active] = (images[active] + (1.0 + self.overshoot) * total[active]).clamp(0.0, 1.0)
        return torch.where(current.isnan().flatten(1).any(1)[:, None, None, None], current, found)


def linearise(model: CountedModel, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f_k = z_k - z_label (classes - 1, n) of the other classes k, their gradients w_k, and the logits z."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(images)
        classes = logits.shape[1]
        own = logits.gather(1, labels[:, None])
        others = (labels[:, None] + torch.arange(1, classes, device=labels.device)) % classes
        margins = (logits.gather(1, others) - own).unbind(1)
        slopes = [torch.autograd.grad(margin.sum(), images, retain_graph=True)[0] for margin in margins]
    return torch.stack(margins).detach(), torch.stack(slopes), logits.detach()


def _step_to_nearest_boundary(margins: Tensor, slopes: Tensor, ball: Norm) -> Tensor:
    """Return the smallest step to a linearised boundary f_k + <w_k, r> = 0: |f_k| / |w_k|_dual along w_k's ascent."""
    directions = ball.ascent(slopes.flatten(0, 1)).view_as(slopes)
    duals = (directions * slopes).flatten(2).sum(2)
    lengths, nearest = (margins.abs() / duals.clamp_min(1e-30)).min(0)
    chosen = directions[nearest, torch.arange(len(nearest), device=nearest.device)]
    return (lengths + STEP_MARGIN)[:, None, None, None] * chosen


@ATTACKS.register("deepfool")
def deepfool(
    *,
    steps: Annotated[int, Field(ge=1, description="maximum number of steps")] = 50,
    overshoot: Annotated[float, Field(ge=0, description="relative overshoot beyond the boundary")] = 0.02,
) -> MinimumNormAttack:
    """DeepFool: minimum-norm attack by linearised decision boundaries (Moosavi-Dezfooli et al. 2016)."""
    return DeepFool(steps=steps, overshoot=overshoot)
