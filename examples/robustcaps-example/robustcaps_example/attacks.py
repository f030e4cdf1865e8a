"""An attack as a class: for those that need more than a function, such as goals, draws or work shared by budgets."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

import robustcaps as rc


class Checkerboard(rc.Attack):
    """A checkerboard of +eps and -eps, or its negative, whichever reaches the goal."""

    norms = ("linf",)

    def __init__(self, *, cell: Annotated[int, Field(ge=1, description="pixels per cell")] = 1) -> None:
        self.cell = cell
        self.passes = 1.0

    @torch.no_grad()
    def run(self, model, images: Tensor, goal, budget, draws) -> Tensor:
        """Return the first of the two boards that reaches the goal."""
        rows, columns = torch.meshgrid(*(torch.arange(n) // self.cell for n in images.shape[-2:]), indexing="ij")
        board = budget.radius(images) * ((rows + columns) % 2 * 2.0 - 1.0)
        light, dark = ((images + sign * board).clamp(0, 1) for sign in (1, -1))
        reached = goal.reached(model(light).argmax(1))
        return torch.where(reached[:, None, None, None], light, dark)
