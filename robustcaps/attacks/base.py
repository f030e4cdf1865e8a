"""What an attack is: it proposes images; the base class checks them, and no attack can get around that."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar, final

import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import Budget, Unit, budgets
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Aim, Goal, Targeted, Untargeted
from robustcaps.attacks.guard import Snapshot, proposal_violations
from robustcaps.attacks.norms import NormName
from robustcaps.attacks.query_budget import Ration
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws


@dataclass(frozen=True, eq=False)
class Proposal:
    """What an attack proposed for one budget, checked."""

    budget: Budget
    images: Tensor
    """(n, channels, height, width): the proposals, and the images themselves where a rule was broken."""
    violations: list[str]
    """The name of the rule each sample's proposal breaks, '' where it breaks none."""


class Attack(ABC):
    """Base of all attacks. A subclass writes `run`; it overrides `run_sweep` where budgets can share work."""

    name: str = ""
    norms: tuple[NormName, ...] = ("linf", "l2")
    """The norms it can keep to."""
    goals: tuple[type[Goal], ...] = (Untargeted, Targeted)
    """The goals it can pursue."""
    needs_eps: bool = True
    """Whether it has a budget at all; without, it is run once, at eps 0."""
    passes: float = 1.0
    """About how many forward passes a row takes at most (a backward pass counts two): for forecasts."""
    closest: bool = False
    """Whether it looks for the smallest perturbation by itself, so that the size of what it finds means something."""
    randomised: bool = False
    """Whether another seed gives other images; if not, a suite runs it with one seed only."""

    budgets: tuple[Budget, ...] = ()
    aim: Aim = Aim()
    max_queries: int | None = None
    """How often it may ask the attacked model about a sample, for each budget; None: as often as it likes."""
    parts: tuple[Attack, ...] = ()
    """The attacks it is made of, if any."""
    settings: dict[str, Any] | None = None
    """Of a part: the name and the options it was made with."""
    surrogates: tuple[str, ...] = ()
    """The names of other models it crafts on, if any; `bind` loads them."""
    crafted_on: str = ""
    """What rows say about that, if the attacked model itself is asked nothing."""

    def bind(self, load: Callable[[str], nn.Module]) -> None:
        """Get the surrogates, for the data at hand, before a sweep."""
        for part in self.parts:
            part.bind(load)

    @abstractmethod
    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return one proposal per image, inside the budget's ball and [0,1]; all randomness comes from `draws`."""

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the proposals for each budget in turn."""
        for budget in budgets:
            yield self.run(model, images, goal, budget, draws)

    @final
    def sweep(
        self, model: nn.Module, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws | None = None
    ) -> Iterator[Proposal]:
        """Run the attack for every budget and yield what it proposes, checked.

        An attack that leaves the box or the ball, or touches what is not its own, is named; what it changed is put
        back. `draws` is the source of randomness; by default that of the first samples of a dataset, with seed 0.
        """
        counted = model if isinstance(model, CountedModel) else CountedModel(model, Counts.zeros(len(images)))
        rows = torch.arange(len(images), device=images.device)
        given, wish = images.detach().clone(), goal.select(rows)
        kept, kept_goal = images.detach().clone(), goal.select(rows)
        ration = Ration(self.max_queries, counted.rows, kept, kept_goal) if self.max_queries else None
        counted = counted.attacked(images.detach().clone(), ration)
        snapshot = Snapshot.take(counted.model, (given, images), (wish.classes, goal.classes))
        draws = draws or Draws(0, rows)
        proposals = iter(self.run_sweep(counted, given, wish, budgets, draws))
        for budget in budgets:
            before, booked = counted.counts.copy(), counted.noise.booked
            try:
                with counted.inference():
                    if ration is None:
                        proposed: Any = next(proposals, None)
                    else:
                        proposed = ration.run(budget, partial(self.run_sweep, counted, given, wish, [budget], draws))
            except BaseException:
                snapshot.restore()  # the model may be attacked again, by another
                raise
            changed = snapshot.restore() or ("changed-counts" if counted.tampered(before, booked) else "")
            broken = [changed] * len(images) if changed else proposal_violations(proposed, images, budget)
            sound = _sound(proposed, images, broken)
            yield Proposal(budget, sound, _with_complaints(broken, sound, images, counted.complained()))

    def at(
        self,
        eps: float | Sequence[float] | None = None,
        *,
        norm: NormName = "linf",
        unit: Unit = "pixel",
        goal: str = "untargeted",
        target: int | str | None = None,
        name: str | None = None,
        max_queries: int | None = None,
    ) -> Self:
        """Return a copy of the attack with its budgets, its aim and the number of queries it has set."""
        placed = copy.copy(self)
        placed.name = name or self.name or type(self).__name__
        placed.aim = _aim(goal, target)
        self._check_supported(placed.aim, norm)
        if self.needs_eps and eps is None:
            raise UserError("eps: missing; give a number or a list of numbers.")
        if max_queries is not None and max_queries < 1:
            raise UserError(f"max_queries: must be at least 1, not {max_queries}.")
        placed.max_queries = max_queries
        placed.randomised = self.randomised or target == "random"
        placed.budgets = budgets(eps if self.needs_eps and eps is not None else 0.0, norm, unit)
        return placed

    def _check_supported(self, aim: Aim, norm: NormName) -> None:
        if norm in ("linf", "l2") and norm not in self.norms:
            raise UserError(f"norm: '{self.name}' keeps to {' or '.join(self.norms)} only, not '{norm}'.")
        wanted = Untargeted if aim.goal == "untargeted" else Targeted
        if wanted not in self.goals:
            raise UserError(f"goal: '{self.name}' cannot be {aim.goal}.")


def _sound(proposed: Any, images: Tensor, violations: list[str]) -> Tensor:
    """Return the proposals, and the images themselves where a rule was broken."""
    sound = torch.tensor([not name for name in violations], dtype=torch.bool, device=images.device)
    if not bool(sound.any()):
        return images
    return torch.where(sound[:, None, None, None], proposed.detach(), images)


def _with_complaints(broken: list[str], sound: Tensor, images: Tensor, complaints: list[str]) -> list[str]:
    """Name what attacks inside the attack did wrong on samples for which nothing else was proposed."""
    if not any(complaints):
        return broken
    nothing = (sound == images).flatten(1).all(1).tolist()
    return [
        name or (complaint if empty else "") for name, complaint, empty in zip(broken, complaints, nothing, strict=True)
    ]


def _aim(goal: str, target: int | str | None) -> Aim:
    if goal == "untargeted":
        return Aim("untargeted", target)
    if goal == "targeted":
        return Aim("targeted", "every" if target is None else target)
    raise UserError(f"goal: must be 'untargeted' or 'targeted', not '{goal}'.")


Plugin = TypeVar("Plugin", bound=Callable[..., Any])


class FunctionAttack(Attack):
    """A plain function (model, images, labels, eps, **options) -> images as an attack; it may ask for `draws` too."""

    goals = (Untargeted,)

    def __init__(self, function: Callable[..., Tensor], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        self.randomised = "draws" in inspect.signature(function).parameters

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Call the function; eps is a number of pixels, or with unit 'std' a tensor (n, 1, 1, 1)."""
        eps = budget.radius(images) if budget.shared_eps is None else budget.shared_eps
        extra = {"draws": draws} if self.randomised else {}
        return self.function(model, images, goal.classes, eps, **self.options, **extra)


def attack(name: str) -> Callable[[Plugin], Plugin]:
    """Register a function (model, images, labels, eps, **options) -> images, or an Attack subclass, as an attack."""

    def decorate(plugin: Plugin) -> Plugin:
        is_class = inspect.isclass(plugin) and issubclass(plugin, Attack)
        ATTACKS.add(name, plugin if is_class else _factory(plugin))
        return plugin

    return decorate


def _factory(function: Callable[..., Tensor]) -> Callable[..., Attack]:
    """Return a factory whose options are the function's parameters after (model, images, labels, eps)."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) < 4:
        raise UserError(f"attack function '{function.__name__}' must take (model, images, labels, eps).")
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in parameters[4:]
        if parameter.name != "draws" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def build(**options: Any) -> Attack:
        return FunctionAttack(function, options)

    build.__name__ = function.__name__
    build.__doc__ = function.__doc__
    build.__module__ = function.__module__
    build.__annotations__ = {
        parameter.name: parameter.annotation for parameter in own if parameter.annotation is not parameter.empty
    }
    build.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    build.__wrapped__ = function  # type: ignore[attr-defined]
    return build
