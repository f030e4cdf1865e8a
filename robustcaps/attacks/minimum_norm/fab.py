"""FAB: minimally distorted adversarial examples by steps to linearised decision boundaries (Croce and Hein 2020).

Unlike DeepFool, every step also pulls towards the original image, projections respect the box [0,1], and the search
goes on from between the original image and an adversarial one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal, Untargeted, likeliest_wrong_classes
from robustcaps.attacks.gradient_based.apgd import Targets
from robustcaps.attacks.minimum_norm.base import MinimumNormAttack
from robustcaps.attacks.minimum_norm.deepfool import linearise
from robustcaps.attacks.norms import NORMS, NormName
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

ALPHA_MAX = 0.1
"""Largest weight of the step from the original image."""
ETA = 1.05
"""Overshoot beyond the linearised boundary."""
BETA = 0.9
"""An adversarial image is moved back to this share of its distance from the original."""

Linearisation = Callable[[CountedModel, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(model, images, rows) -> margin f_t - f_y (n,) of a boundary, its gradient in the images, and the logits."""
FabSteps = Annotated[int, Field(ge=1, description="steps for each target")]


class Fab(MinimumNormAttack):
    """Steps to the nearest linearised boundary of all classes, or to that of each likely wrong class in turn."""

    goals = (Untargeted,)

    def __init__(self, *, steps: int, targets: int | None) -> None:
        self.steps = steps
        self.targets = targets
        self.passes = 3.0 * steps * (targets or 3)

    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:  # noqa: ARG002
        """Return the closest misclassified image found, or the clean image."""
        with torch.no_grad():
            logits = model(images)
        best = images.clone()
        distance = torch.full((len(images),), torch.inf, dtype=torch.float64, device=images.device)
        distance[goal.reached(logits.argmax(1))] = 0.0
        if self.targets is None:
            self._descend(model, images, goal, norm, best, distance, _nearest_boundary(goal, norm))
            return best
        for target in likeliest_wrong_classes(logits, goal.classes, self.targets).unbind(1):
            self._descend(model, images, goal, norm, best, distance, _boundary_towards(goal, target))
        return best

    def _descend(
        self,
        model: CountedModel,
        images: Tensor,
        goal: Goal,
        norm: NormName,
        best: Tensor,
        distance: Tensor,
        linearisation: Linearisation,
    ) -> None:
        """Run one descent from the original images; update the closest images and their distances in place."""
        active = torch.nonzero(distance > 0).flatten()
        if len(active) == 0:
            return
        ball, part = NORMS[norm], model.select(active)
        original, current = images[active], images[active].clone()
        for step in range(self.steps + 1):
            margin, slope, logits = linearisation(part, current, active)
            if step:
                reached = goal.select(active).reached(logits.argmax(1))
                size = ball.size(current - original)
                closer = reached & (size < distance[active])
                best[active[closer]], distance[active[closer]] = current[closer], size[closer]
                pulled = original + BETA * (current - original)
                margin = margin + ((pulled - current) * slope).flatten(1).sum(1) * reached
                current = torch.where(reached[:, None, None, None], pulled, current)
            if step < self.steps:
                current = _next_iterate(current, original, margin, slope, norm)


def _next_iterate(current: Tensor, original: Tensor, margin: Tensor, slope: Tensor, norm: NormName) -> Tensor:
    """Return x_(i+1) = (1 - alpha) (x_i + eta delta_i) + alpha (x + eta delta), clipped to [0,1] (equation 9).

    delta_i and delta are the steps from x_i and from the original x to the hyperplane f + <w, z - x_i> = 0 in the box.
    """
    offset = margin + ((original - current) * slope).flatten(1).sum(1)
    from_current = step_to_hyperplane(current, slope, margin, norm)
    from_original = step_to_hyperplane(original, slope, offset, norm)
    near, far = (NORMS[norm].size(step).clamp_min(1e-8) for step in (from_current, from_original))
    alpha = (near / (near + far)).clamp_max(ALPHA_MAX).to(current)[:, None, None, None]
    mixed = (1.0 - alpha) * (current + ETA * from_current) + alpha * (original + ETA * from_original)
    return mixed.clamp(0.0, 1.0)


def step_to_hyperplane(images: Tensor, slope: Tensor, offset: Tensor, norm: NormName) -> Tensor:
    """Return the smallest steps r inside the box [0,1] with offset + <slope, r> = 0; the furthest if there is none.

    Pixel i moves by min(lambda m_i, room_i) against the sign of the offset, where m_i is 1 for linf and |w_i| for l2,
    until sum_i |w_i| min(lambda m_i, room_i) = |offset|: piecewise linear in lambda, solved exactly by sorting its
    kinks room_i / m_i.
    """
    w = slope.flatten(1) * -torch.sign(offset)[:, None]  # the direction in which |offset| decreases
    x, needed = images.flatten(1), offset.abs()
    weight = w.abs()
    room = torch.where(w > 0, 1.0 - x, x).clamp_min(0.0)
    speed = torch.ones_like(weight) if norm == "linf" else weight
    kink, order = (room / speed.clamp_min(1e-30)).sort(dim=1)
    rate = (weight * speed).gather(1, order)
    moving = rate.flip(1).cumsum(1).flip(1)  # rates of the pixels that still move just before each kink
    gained = (torch.diff(kink, dim=1, prepend=torch.zeros_like(kink[:, :1])) * moving).cumsum(1)
    last = torch.searchsorted(gained, needed[:, None]).clamp_max(kink.shape[1] - 1)
    missing = (gained.gather(1, last) - needed[:, None]).clamp_min(0.0)
    scale = kink.gather(1, last) - missing / moving.gather(1, last).clamp_min(1e-30)
    return (torch.sign(w) * torch.minimum(scale * speed, room)).view_as(images)


def _boundary_towards(goal: Goal, target: Tensor) -> Linearisation:
    """Return the linearisation of the boundary between the label and one class."""

    def linearisation(model: CountedModel, images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        images = images.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(images)
            own, other = (logits.gather(1, each[rows][:, None])[:, 0] for each in (goal.classes, target))
            (slope,) = torch.autograd.grad((other - own).sum(), images)
        return (other - own).detach(), slope, logits.detach()

    return linearisation


def _nearest_boundary(goal: Goal, norm: NormName) -> Linearisation:
    """Return the linearisation of the nearest boundary of all wrong classes: |f_k| / |w_k|_dual is smallest."""
    order = 1 if norm == "linf" else 2

    def linearisation(model: CountedModel, images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        margins, slopes, logits = linearise(model, images, goal.classes[rows])
        nearest = (margins.abs() / slopes.flatten(2).norm(p=order, dim=2).clamp_min(1e-30)).argmin(0)
        each = torch.arange(len(images), device=images.device)
        return margins[nearest, each], slopes[nearest, each], logits

    return linearisation


@ATTACKS.register("fab")
def fab(*, steps: FabSteps = 100) -> Attack:
    """FAB: minimum-norm attack by steps to the nearest linearised boundary (Croce and Hein 2020)."""
    return Fab(steps=steps, targets=None)


@ATTACKS.register("fab-t")
def fab_t(*, steps: FabSteps = 100, targets: Targets = 9) -> Attack:
    """FAB towards each of the likeliest wrong classes in turn, as in AutoAttack (Croce and Hein 2020)."""
    return Fab(steps=steps, targets=targets)
