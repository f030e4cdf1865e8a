"""Random layers of capsules, routed by the code under test and by the loops of the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from robustcaps.capsules.routing import (
    Activation,
    Competition,
    Routed,
    Start,
    Step,
    Wiring,
    convolution,
    em_routing,
    em_steps,
    matrix_votes,
)
from tests.capsules import reference

Grid = tuple[int, int, int]
"""(size, kernel, stride); a kernel of the whole size is a fully connected layer."""
GRIDS: list[Grid] = [(5, 3, 2), (6, 3, 2), (4, 3, 1), (3, 2, 2), (2, 2, 1), (1, 1, 1)]
"""Overlapping windows; with children that no window reaches; dense; disjoint; one window; a single position."""
COMPETITIONS: tuple[Competition, ...] = get_args(Competition)
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
STARTS: tuple[Start, ...] = get_args(Start)
OUTPUTS = ("poses", "logits", "variance", "support")
INPUTS = ("poses", "activations", "transforms", "offsets", "beta_a", "beta_u", "inverse_temperature")


@dataclass(frozen=True)
class Layer:
    """Children, parameters and rules of one layer; a beta has one value per parent type, or one for all."""

    grid: Grid
    poses: Tensor
    activations: Tensor
    transforms: Tensor
    offsets: Tensor | None
    beta_a: Tensor
    beta_u: Tensor
    inverse_temperature: Tensor
    variance_floor: float = 0.1
    competition: Competition = "field"
    activation: Activation = "cost"
    mean_momentum: float = 0.0
    start: Start = "uniform"

    def inputs(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in INPUTS if getattr(self, name) is not None}

    @property
    def wiring(self) -> Wiring:
        return convolution(*self.grid)

    def rules(self) -> dict[str, Any]:
        types = self.transforms.shape[-3]
        names = ("inverse_temperature", "variance_floor", "competition", "activation", "mean_momentum", "start")
        betas = {"beta_a": self.beta_a.expand(types), "beta_u": self.beta_u.expand(types)}
        return {**betas, **{name: getattr(self, name) for name in names}}

    def route(self) -> Routed:
        children = (self.poses, self.activations, self.transforms)
        return em_routing(*children, self.wiring, offsets=self.offsets, backend="torch", **self.rules())

    def steps(self) -> list[Step]:
        votes = matrix_votes(self.poses, self.transforms, self.wiring, self.offsets)
        return list(em_steps(votes, self.activations, self.wiring, **self.rules()))

    def route_by_loops(self) -> Routed:
        """The same, sample by sample, by the loops of the reference."""
        types, edges = self.transforms.shape[-3], reference.convolution_edges(*self.grid)
        given = {name: value.detach().numpy() for name, value in self.inputs().items()}
        rules = reference.Rules(
            np.broadcast_to(given["beta_a"], types),
            np.broadcast_to(given["beta_u"], types),
            given["inverse_temperature"],
            self.variance_floor,
            self.competition,
            self.activation,
            self.mean_momentum,
            self.start,
        )
        found: dict[str, list[Any]] = {name: [] for name in OUTPUTS}
        for poses, activations in zip(given["poses"], given["activations"], strict=True):
            votes = reference.matrix_votes(poses, given["transforms"], given.get("offsets"), edges)
            parents, logits = reference.em_routing(votes, dict(np.ndenumerate(activations)), rules)
            order = sorted(parents)
            found["poses"].append(np.stack([parents[j].mu for j in order]))
            found["variance"].append(np.stack([parents[j].variance for j in order]))
            found["support"].append(np.array([parents[j].support for j in order]))
            found["logits"].append(np.array([logits[j] for j in order]))
        return Routed(**{name: torch.tensor(np.stack(x)).unflatten(1, (-1, types)) for name, x in found.items()})


def make_layer(
    grid: Grid,
    *,
    child_types: int = 2,
    types: int = 3,
    iterations: int = 3,
    n: int = 2,
    side: int = 4,
    shared: bool = False,
    offsets: bool = False,
    betas: str = "type",
    seed: int = 0,
    **options: Any,
) -> Layer:
    """Draw a layer in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    size, kernel, _ = grid
    pairs = (child_types, types) if shared else (kernel * kernel, child_types, types)
    prices = types if betas == "type" else 1
    drawn = {
        "poses": draw(n, size * size, child_types, 16),
        "activations": draw(n, size * size, child_types).sigmoid(),
        "transforms": 0.4 / side**0.5 * draw(*pairs, side, side),
        "offsets": 0.4 * draw(kernel * kernel, 16) if offsets else None,
        "beta_a": draw(prices),
        "beta_u": 0.2 * draw(prices),
        "inverse_temperature": torch.linspace(0.1, 0.3, iterations, dtype=torch.float64),
    }
    return Layer(grid, **{**drawn, **options})
