"""Other viewpoints on a rendered object: the dataset draws the sample again from the side that is asked for."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Self

import pandas as pd
import torch
from torch import Tensor

from robustcaps.attacks.spatial.budgets import TransformationBudget
from robustcaps.data.base import Data, Renderer
from robustcaps.errors import UserError
from robustcaps.options import NormName, Unit

MAX_TURN = 180.0
MAX_VALUES = 50_000_000
"""Values of the images that the cache keeps: 200 MB."""


class ViewCache:
    """Drawn views by renderer, factors and angles; the views that were not used for longest are dropped."""

    def __init__(self, max_values: int) -> None:
        self.max_values = max_values
        self.size = 0
        self.views: OrderedDict[Hashable, Tensor] = OrderedDict()

    def draw(self, renderer: Renderer, factors: pd.DataFrame, changes: Tensor) -> Tensor:
        """Return the views of some samples; draw those that are missing."""
        samples = factors.itertuples(index=False, name=None)
        keys = [(renderer, *sample, *change) for sample, change in zip(samples, changes.tolist(), strict=True)]
        missing = list({key: row for row, key in enumerate(keys) if key not in self.views}.values())
        if missing:
            drawn = renderer.draw(factors.iloc[missing], changes[missing].numpy())
            self._add([keys[row] for row in missing], drawn)
        for key in keys:
            self.views.move_to_end(key)
        found = torch.stack([self.views[key] for key in keys])
        while self.size > self.max_values:
            self.size -= self.views.popitem(last=False)[1].numel()
        return found

    def _add(self, keys: list[tuple[Hashable, ...]], drawn: Tensor) -> None:
        for key, image in zip(keys, drawn, strict=True):
            self.views[key] = image.clone()
            self.size += image.numel()


VIEWS = ViewCache(MAX_VALUES)
"""Shared by all cells of a process, as models are searched from the same views first."""


@dataclass(frozen=True, eq=False)
class ViewpointBudget(TransformationBudget):
    """Views with every angle, of the camera and of the light, up to eps degrees from each sample's own."""

    norm: NormName = "viewpoint"
    unit: Unit = "degrees"
    factors: pd.DataFrame = field(default_factory=pd.DataFrame)
    """What each image shows, a row for each."""
    renderer: Renderer | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps > MAX_TURN:
            raise UserError(f"eps: a turn is at most {MAX_TURN:g} degrees, not {self.eps:g}.")

    def for_samples(self, data: Data, rows: Tensor) -> ViewpointBudget:
        """Return the budget of some samples of a dataset, which must be able to draw them."""
        if data.renderer is None:
            raise UserError(f"norm 'viewpoint': '{data.name}' cannot be drawn from other sides; 'toys' can.")
        return replace(self, factors=data.factors.iloc[rows.tolist()], renderer=data.renderer)

    def select(self, rows: Tensor) -> Self:
        return replace(self, factors=self.factors.iloc[rows.tolist()])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Degrees by which each angle is changed."""
        return tuple(f"{angle}_change" for angle in self._scenes.angles)

    @property
    def _scenes(self) -> Renderer:
        if self.renderer is None:
            raise UserError("norm 'viewpoint': needs a dataset that can be drawn; evaluate on data from load_data.")
        return self.renderer

    def full_range(self) -> Tensor:
        return torch.ones(len(self._scenes.angles), dtype=torch.float64)

    def limits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (torch.from_numpy(limit).to(images.device) for limit in self._scenes.limits(self.factors))
        return low.clamp(-self.eps, 0.0), high.clamp(0.0, self.eps)

    def move(self, images: Tensor, parameters: Tensor, *, anew: bool) -> Tensor:
        """Return the views; unless they are to be drawn anew, from the cache where they were drawn before."""
        changes = parameters.detach().cpu()
        if anew:
            return self._scenes.draw(self.factors, changes.numpy()).to(images)
        return VIEWS.draw(self._scenes, self.factors, changes).to(images)

    def grid(self, levels: int) -> Tensor:
        """Return points with `levels` values of the first angle and three of the next two, the farthest first."""
        angles = len(self._scenes.angles)
        first = torch.linspace(-1.0, 1.0, levels, dtype=torch.float64).tolist()
        axes = [first, *[(-1.0, 0.0, 1.0)] * min(2, angles - 1), *[(0.0,)] * max(0, angles - 3)]
        points = [point for point in itertools.product(*axes) if any(point)]
        return torch.tensor(sorted(points, key=lambda point: -math.hypot(*point)), dtype=torch.float64)
