"""Gradient-free descent: gradients estimated by finite differences along random directions, in a growing subspace.

Natural evolution strategies with antithetic pairs (Ilyas et al. 2018). Directions are constant on square tiles, as in
the tiling prior of Ilyas, Engstrom and Madry (2019): coarse tiles need few queries, fine ones reach every pixel.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget, project
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.losses import margin_loss
from robustcaps.attacks.norms import Norm
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

TILES = (4, 8, 16, 32)
"""Tiles per side of the subspaces, as far as the image has so many pixels; the last one has a tile for each pixel."""
MOMENTUM = 0.75
"""Weight of earlier estimates: a single one is noisy."""
FIRST_STEP, LAST_STEP = 0.5, 0.05
"""Size of the first and of the last step, as fractions of the radius."""
PROBE = 0.25
"""Distance of the probes on both sides, as a fraction of the radius: large, so that they see past fine ripples."""


class FiniteDifferenceDescent(Attack):
    """Signed steps along gradients that are estimated from outputs alone."""

    randomised = True

    def __init__(self, *, steps: int, pairs: int) -> None:
        self.steps, self.pairs = steps, pairs
        self.passes = 1.0 + steps * (2.0 * pairs + 1.0)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the image with the highest margin on the way; samples that reached the goal leave the batch."""
        best, momentum, radii = images.clone(), torch.zeros_like(images), budget.radius(images)
        current, highest = images.clone(), torch.full_like(images[:, 0, 0, 0], -torch.inf)
        active = torch.arange(len(images) if budget.eps else 0, device=images.device)
        for step in range(self.steps):
            if len(active) == 0:
                break
            subset, radius = (model.select(active), goal.select(active)), radii[active]
            directions = self._directions(current[active], draws.select(active), step)
            estimate = _estimate_gradient(*subset, current[active], PROBE * radius, directions, budget.ball)
            scale = estimate.abs().mean((1, 2, 3), keepdim=True).clamp_min(1e-38)
            momentum[active] = MOMENTUM * momentum[active] + (1.0 - MOMENTUM) * estimate / scale
            size = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(1, self.steps - 1))
            moved = current[active] + size * radius * budget.ball.ascent(momentum[active])
            current[active] = project(moved, images[active], budget.ball, radius)
            margins, reached = _margins(*subset, current[active])
            better = (margins > highest[active]) | reached
            best[active[better]], highest[active[better]] = current[active[better]], margins[better]
            active = active[~reached]
        return best

    def _directions(self, images: Tensor, draws: Draws, step: int) -> list[Tensor]:
        """Return random signs on the tiles of this step's subspace."""
        channels, height, width = images.shape[1:]
        sizes = sorted({max(1, min(height, width) // tiles) for tiles in TILES}, reverse=True)
        side = sizes[step * len(sizes) // self.steps]
        coarse = (channels, -(-height // side), -(-width // side))
        directions = []
        for pair in range(self.pairs):
            signs = draws.uniform(coarse, stream=step * self.pairs + pair).ge(0.5).to(images) * 2.0 - 1.0
            tiled = signs.repeat_interleave(side, 2).repeat_interleave(side, 3)
            directions.append(tiled[:, :, :height, :width])
        return directions


def _estimate_gradient(
    model: CountedModel, goal: Goal, images: Tensor, distance: Tensor, directions: list[Tensor], ball: Norm
) -> Tensor:
    """Return sum_k (f(x + d u_k) - f(x - d u_k)) u_k for the margin f and probes inside [0,1]."""
    total = torch.zeros_like(images)
    for direction in directions:
        offset = distance * ball.ascent(direction)
        sides = [_margins(model, goal, (images + sign * offset).clamp(0.0, 1.0))[0] for sign in (1.0, -1.0)]
        difference = (sides[0] - sides[1]).nan_to_num(0.0, 0.0, 0.0)
        total += difference[:, None, None, None] * direction
    return total


@torch.no_grad()
def _margins(model: CountedModel, goal: Goal, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the margins by which the goal is reached, and where it is."""
    margins, logits = margin_loss(model, images, goal)
    return margins, goal.reached(logits.argmax(1)) if logits is not None else margins > 0


@ATTACKS.register("nes")
def nes(
    *,
    steps: Annotated[int, Field(ge=1, description="descent steps")] = 50,
    pairs: Annotated[int, Field(ge=1, description="pairs of queries that estimate a gradient")] = 20,
) -> Attack:
    """NES: descent along gradients estimated by finite differences in a growing subspace (Ilyas et al. 2018)."""
    return FiniteDifferenceDescent(steps=steps, pairs=pairs)
