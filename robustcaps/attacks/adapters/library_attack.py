"""Attacks of other libraries with the budgets, goals, seeds and pass counts of this one.

Libraries draw random numbers for a batch as a whole, and some of their attacks stop for a batch as a whole. Their rows
are therefore reproducible for the same seed and batch size only.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from robustcaps.attacks.minimum_norm.base import MinimumNormAttack
from robustcaps.attacks.norms import NormName
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

BOTH_NORMS: tuple[NormName, ...] = ("linf", "l2")
L1_ATTACK: tuple[NormName, ...] = ("l1", *BOTH_NORMS)
L0_ATTACK: tuple[NormName, ...] = ("l0", *BOTH_NORMS)
"""Norms of attacks that are made for l1 or l0; in others their results are only projected."""
UNTARGETED: tuple[type[Goal], ...] = (Untargeted,)
TARGETED: tuple[type[Goal], ...] = (Targeted,)


@dataclass(frozen=True, eq=False)
class AttackRequest:
    """One call of a library: a batch, a goal, and a single eps."""

    counted: CountedModel
    images: Tensor
    goal: Goal
    norm: NormName
    eps: float
    seed: int

    @property
    def model(self) -> LibraryModel:
        """The model to pass to the library."""
        return LibraryModel(self.counted, self.images.shape[1])

    def select(self, rows: Tensor) -> AttackRequest:
        """Return the request for a subset of the samples."""
        counted, images, goal = self.counted.select(rows), self.images[rows], self.goal.select(rows)
        return replace(self, counted=counted, images=images, goal=goal)


class LibraryModel(nn.Module):
    """The model passed to a library: its mode is fixed, and channels that the library added are dropped."""

    def __init__(self, counted: CountedModel, channels: int) -> None:
        super().__init__()
        self.counted = counted
        self.channels = channels
        self.training = False

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """Ignore the mode."""
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits and count the pass."""
        logits: Tensor = self.counted(images[:, : self.channels])
        return logits


@dataclass(frozen=True, eq=False)
class LibraryAttackSpec:
    """Properties of a library attack that its signature does not declare."""

    attack_class: Callable[..., Any]
    help: str
    norms: tuple[NormName, ...]
    """Norms it supports, its own first."""
    goals: tuple[type[Goal], ...] = (Untargeted, Targeted)
    random: Literal["never", "start", "restarts", "always"] = "never"
    """When it uses random numbers: with the option random_start, with restarts, or always."""
    minimises: bool = False
    """Whether it minimises the perturbation, so that one search serves every eps."""
    follows_norm: bool = False
    """Whether an attack that minimises and supports both norms minimises the norm of the budget."""
    passes_per_step: float = 3.0
    """Forward passes per step (a backward pass counts as two), to forecast run times."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Types of options that the signature does not declare."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of options that have none."""
    hidden: tuple[str, ...] = ()
    """Options that have no effect here."""
    requires: str = ""
    """A package that the attack needs but the library does not install."""

    @property
    def minimised_norms(self) -> tuple[NormName, ...]:
        """Norms that it minimises, if it minimises any."""
        if not self.minimises or (self.norms == BOTH_NORMS and not self.follows_norm):
            return ()
        return self.norms if self.follows_norm else self.norms[:1]


RunLibraryAttack = Callable[[LibraryAttackSpec, AttackRequest, dict[str, Any]], Tensor]
"""(specification, request, options) -> adversarial images: calls a library."""


class FixedBudgetLibraryAttack(Attack):
    """A library attack inside a ball of fixed size."""

    draws_per_batch = True

    def __init__(self, spec: LibraryAttackSpec, run_library: RunLibraryAttack, options: dict[str, Any]) -> None:
        self.spec, self.run_library, self.options = spec, run_library, options
        _set_properties(self, spec, options)

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Call the library once per distinct radius, because it takes one eps per call."""
        found, radii = images.clone(), budget.radius(images).flatten()
        for radius in radii[radii > 0].unique():  # type: ignore[no-untyped-call]
            rows = torch.nonzero(radii == radius).flatten()
            with isolated_library_state(model.model, draws.select(rows)) as seed:
                request = AttackRequest(model, images, goal, budget.norm, float(radius), seed).select(rows)
                found[rows] = self.run_library(self.spec, request, self.options).detach()
        return found


class MinimumNormLibraryAttack(MinimumNormAttack):
    """A library attack that minimises the perturbation."""

    draws_per_batch = True

    def __init__(self, spec: LibraryAttackSpec, run_library: RunLibraryAttack, options: dict[str, Any]) -> None:
        self.spec, self.run_library, self.options = spec, run_library, options
        _set_properties(self, spec, options)

    def configure(self, eps: float | Sequence[float] | None = None, **settings: Any) -> Self:
        """Return a copy with budgets and goal; in norms that are not its own it does not minimise."""
        configured = super().configure(eps, **settings)
        configured.minimises_norm = configured.budgets[0].norm in self.spec.minimised_norms
        return configured

    def search(self, model: CountedModel, images: Tensor, goal: Goal, norm: NormName, draws: Draws) -> Tensor:
        """Call the library; if it takes an eps nevertheless, that is the diameter of [0,1]."""
        values = float(images[0].numel())
        diameter = {"linf": 1.0, "l2": math.sqrt(values)}.get(norm, values)
        with isolated_library_state(model.model, draws) as seed:
            request = AttackRequest(model, images, goal, norm, diameter, seed)
            return self.run_library(self.spec, request, self.options).detach()


@contextmanager
def isolated_library_state(model: nn.Module, draws: Draws) -> Iterator[int]:
    """Seed the global random state and enable autograd for a library, then restore both; yields the seed.

    The seed belongs to the first sample of the batch. Weights get no gradients, because attacks do not need them.
    """
    seed = int(draws.select(torch.zeros(1, dtype=torch.long)).integers(2**24))
    device = draws.indices.device
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  libraries use the legacy generator
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
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


PASS_MULTIPLIERS = frozenset(
    {"steps", "max_iterations", "num_iter_set", "nb_iter", "n_queries", "nb_sample", "popsize", "population", "N", "m"}
    | {"eot_iter", "noise_batch_size", "binary_search_steps", "n_restarts", "restarts", "repeats", "directions"}
)
"""Options that multiply the number of passes."""


def _set_properties(attack: Attack, spec: LibraryAttackSpec, options: dict[str, Any]) -> None:
    """Set the norms, goals, randomness and estimated cost of an attack."""
    attack.norms, attack.goals = spec.norms, spec.goals
    attack.default_norm = spec.norms[0] if spec.norms[0] in ("l1", "l0") else "linf"
    attack.minimises_norm = bool(spec.minimised_norms)
    start, restarts = options.get("random_start", False), options.get("n_restarts", 1) > 1
    attack.randomised = {"never": False, "start": start, "restarts": restarts, "always": True}[spec.random]
    attack.passes = spec.passes_per_step * math.prod(
        value for name, value in options.items() if name in PASS_MULTIPLIERS
    )


def register(
    name: str,
    spec: LibraryAttackSpec,
    run_library: RunLibraryAttack,
    *,
    hidden: frozenset[str],
    types: Mapping[str, Any],
) -> None:
    """Register a library attack with the options of the library's class, except for the `hidden` ones.

    The type of an option comes from the specification, else from `types`, the signature, or the default value.
    """
    option_types, excluded = {**types, **spec.types}, hidden.union(spec.hidden)
    signature = inspect.signature(spec.attack_class).parameters.values()
    options = [_make_option(item, option_types, spec.defaults) for item in signature if item.name not in excluded]

    def build(**values: Any) -> Attack:
        if spec.requires and importlib.util.find_spec(spec.requires) is None:
            raise UserError(f"attack '{name}' needs {spec.requires}: pip install {spec.requires}.")
        return (MinimumNormLibraryAttack if spec.minimises else FixedBudgetLibraryAttack)(spec, run_library, values)

    build.__name__ = name
    build.__doc__ = f"{spec.help} [{_describe_limits(spec)}]"
    build.__annotations__ = {option.name: option.annotation for option in options}
    build.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    ATTACKS.add(name, build)


def _make_option(item: inspect.Parameter, types: Mapping[str, Any], defaults: Mapping[str, Any]) -> inspect.Parameter:
    default = defaults.get(item.name, item.default)
    declared = type(default) if item.annotation is item.empty else item.annotation
    return item.replace(kind=item.KEYWORD_ONLY, default=default, annotation=types.get(item.name, declared))


def _describe_limits(spec: LibraryAttackSpec) -> str:
    """Return the supported norms, and the goal if only one is supported."""
    norms = " or ".join(spec.norms)
    only = {UNTARGETED: ", untargeted only", TARGETED: ", targeted only"}.get(spec.goals, "")
    return norms + only
