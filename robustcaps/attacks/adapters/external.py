"""Attacks of other libraries as attacks of this one: their options, our budgets, goals, seeds and counting.

What comes with them: their random numbers are drawn for a batch as a whole, and some of them also stop for a batch as
a whole. The same seed and the same batches give the same rows; another batch size may give others.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel
from robustcaps.attacks.goals import Goal, Targeted, Untargeted
from robustcaps.attacks.minimum_norm import Closest
from robustcaps.attacks.norms import NormName
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

BOTH: tuple[NormName, ...] = ("linf", "l2")
UNTARGETED: tuple[type[Goal], ...] = (Untargeted,)
TARGETED: tuple[type[Goal], ...] = (Targeted,)


@dataclass(frozen=True, eq=False)
class Request:
    """What a library is asked for: proposals for all images, inside one eps (of an attack that has a ball)."""

    counted: CountedModel
    images: Tensor
    goal: Goal
    norm: NormName
    eps: float
    seed: int

    @property
    def model(self) -> Shown:
        """The model as the library gets it."""
        return Shown(self.counted, self.images.shape[1])

    def select(self, rows: Tensor) -> Request:
        """Return the request for some of the samples."""
        counted, images, goal = self.counted.select(rows), self.images[rows], self.goal.select(rows)
        return replace(self, counted=counted, images=images, goal=goal)


class Shown(nn.Module):
    """A model as libraries see it: they cannot switch its mode, and channels they add to the images are dropped."""

    def __init__(self, counted: CountedModel, channels: int) -> None:
        super().__init__()
        self.counted = counted
        self.channels = channels
        self.training = False

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Leave the mode as it is."""
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits and book the pass."""
        logits: Tensor = self.counted(images[:, : self.channels])
        return logits


@dataclass(frozen=True, eq=False)
class Native:
    """What the harness must know about an attack of a library; its own signature tells the rest."""

    make: Callable[..., Any]
    """The library's class."""
    help: str
    norms: tuple[NormName, ...]
    goals: tuple[type[Goal], ...] = (Untargeted, Targeted)
    random: Literal["never", "start", "restarts", "always"] = "never"
    """When it draws random numbers: if its option random_start is set, if it restarts, or always."""
    minimal: bool = False
    """Whether it minimises the perturbation by itself, so that one search serves every eps."""
    follows_norm: bool = False
    """Of one that minimises and takes both norms: whether it minimises the one it is given, not another measure."""
    weight: float = 3.0
    """Passes per unit of what its options count (a backward pass counts two): for forecasts."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """The types of options that the signature does not tell."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The defaults of options that have none."""
    hidden: tuple[str, ...] = ()
    """Options that do nothing here."""
    needs: str = ""
    """A package that it needs and that the library does not bring."""


Propose = Callable[[Native, Request, dict[str, Any]], Tensor]
"""(attack, request, its options) -> proposals: how a library is called."""


class InBall(Attack):
    """A foreign attack that keeps to a ball of a given size."""

    def __init__(self, native: Native, propose: Propose, options: dict[str, Any]) -> None:
        self.native, self.propose, self.options = native, propose, options
        _describe(self, native, options)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return the library's proposals; it takes one eps per call, so samples of equal radius go together."""
        found, radii = images.clone(), budget.radius(images).flatten()
        for radius in radii[radii > 0].unique():  # type: ignore[no-untyped-call]
            rows = torch.nonzero(radii == radius).flatten()
            with at_home(model.model, draws.select(rows)) as seed:
                whole = Request(model, images, goal, budget.norm, float(radius), seed)
                found[rows] = self.propose(self.native, whole.select(rows), self.options).detach()
        return found


class Minimal(Closest):
    """A foreign attack that looks for the closest adversarial image by itself."""

    def __init__(self, native: Native, propose: Propose, options: dict[str, Any]) -> None:
        self.native, self.propose, self.options = native, propose, options
        _describe(self, native, options)

    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:
        """Return what the library found; where it wants an eps all the same, no image of [0,1] is farther."""
        farthest = 1.0 if norm == "linf" else math.sqrt(images[0].numel())
        with at_home(model.model, draws) as seed:
            return self.propose(self.native, Request(model, images, goal, norm, farthest, seed), self.options).detach()


@contextmanager
def at_home(model: nn.Module, draws: Draws) -> Iterator[int]:
    """Let a library draw from the global generators and backpropagate as it likes; then all is as it was before.

    Yields the seed, that of the batch's first sample. Weights get no gradients: no attack needs them.
    """
    seed = int(draws.select(torch.zeros(1, dtype=torch.long)).integers(2**24))
    device = draws.indices.device
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002  the legacy generator is what libraries use
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            for parameter in weights:
                parameter.requires_grad_(False)  # noqa: FBT003
            yield seed
        finally:
            for parameter in weights:
                parameter.requires_grad_()
            random.setstate(kept[0])
            np.random.set_state(kept[1])  # noqa: NPY002


COUNTING = frozenset(
    {"steps", "max_iterations", "num_iter_set", "nb_iter", "n_queries", "nb_sample", "popsize", "population", "N", "m"}
    | {"eot_iter", "noise_batch_size", "binary_search_steps", "n_restarts", "restarts", "repeats", "directions"}
)
"""Options that multiply an attack's passes."""


def _describe(attack: Attack, native: Native, options: dict[str, Any]) -> None:
    """Say what an attack can do and what it costs."""
    attack.norms, attack.goals = native.norms, native.goals
    attack.closest = native.minimal and (native.norms != BOTH or native.follows_norm)
    start, restarts = options.get("random_start", False), options.get("n_restarts", 1) > 1
    attack.randomised = {"never": False, "start": start, "restarts": restarts, "always": True}[native.random]
    attack.passes = native.weight * math.prod(value for name, value in options.items() if name in COUNTING)


def register(name: str, native: Native, propose: Propose, *, hidden: frozenset[str], types: Mapping[str, Any]) -> None:
    """Register a foreign attack: its options are those of the library's class but for the `hidden` ones.

    An option's type is the one said for this attack, else by `types`, else by the signature, else its default's.
    """
    known, unseen = {**types, **native.types}, hidden.union(native.hidden)
    signature = inspect.signature(native.make).parameters.values()
    options = [_option(item, known, native.defaults) for item in signature if item.name not in unseen]

    def build(**chosen: Any) -> Attack:
        if native.needs and importlib.util.find_spec(native.needs) is None:
            raise UserError(f"attack '{name}' needs {native.needs}: pip install {native.needs}.")
        return (Minimal if native.minimal else InBall)(native, propose, chosen)

    build.__name__ = name
    build.__doc__ = f"{native.help} [{_limits(native)}]"
    build.__annotations__ = {option.name: option.annotation for option in options}
    build.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    ATTACKS.add(name, build)


def _option(item: inspect.Parameter, types: Mapping[str, Any], defaults: Mapping[str, Any]) -> inspect.Parameter:
    default = defaults.get(item.name, item.default)
    declared = type(default) if item.annotation is item.empty else item.annotation
    return item.replace(kind=item.KEYWORD_ONLY, default=default, annotation=types.get(item.name, declared))


def _limits(native: Native) -> str:
    """Return the norms and, if it has only one, the goal of an attack in words."""
    norms = " or ".join(native.norms)
    only = {UNTARGETED: ", untargeted only", TARGETED: ", targeted only"}.get(native.goals, "")
    return norms + only
