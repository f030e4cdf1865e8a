"""What an attack is: it proposes images; the harness checks them, predicts on them and counts."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor

from robustcaps.attacks.budget import Budget, Unit, budgets
from robustcaps.attacks.counted import CountedModel
from robustcaps.attacks.goals import Aim, Goal, Targeted, Untargeted
from robustcaps.attacks.norms import NormName
from robustcaps.errors import UserError
from robustcaps.randomness import Draws
from robustcaps.registry import ATTACKS


class Attack(ABC):
    """Base of all attacks. A subclass writes `run`; it overrides `sweep` where budgets can share work."""

    name: str = ""
    norms: ClassVar[tuple[NormName, ...]] = ("linf", "l2")
    """The norms it can keep to."""
    goals: ClassVar[tuple[type[Goal], ...]] = (Untargeted, Targeted)
    """The goals it can pursue."""
    needs_eps: ClassVar[bool] = True
    """Whether it has a budget at all; without, it is run once, at eps 0."""
    passes: float = 1.0
    """About how many forward passes a row takes at most (a backward pass counts two): for forecasts."""
    randomised: bool = False
    """Whether another seed gives other images; if not, a suite runs it with one seed only."""

    budgets: tuple[Budget, ...] = ()
    aim: Aim = Aim()

    @abstractmethod
    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Return one proposal per image, inside the budget's ball and [0,1]; all randomness comes from `draws`."""

    def sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor]:
        """Yield the proposals for each budget in turn."""
        for budget in budgets:
            yield self.run(model, images, goal, budget, draws)

    def at(
        self,
        eps: float | Sequence[float] | None = None,
        *,
        norm: NormName = "linf",
        unit: Unit = "pixel",
        goal: str = "untargeted",
        target: int | str | None = None,
        name: str | None = None,
    ) -> Self:
        """Return a copy of the attack with its budgets and its aim set."""
        placed = copy.copy(self)
        placed.name = name or self.name or type(self).__name__
        placed.aim = _aim(goal, target)
        self._check_supported(placed.aim, norm)
        if self.needs_eps and eps is None:
            raise UserError("eps: missing; give a number or a list of numbers.")
        placed.budgets = budgets(eps if self.needs_eps and eps is not None else 0.0, norm, unit)
        return placed

    def _check_supported(self, aim: Aim, norm: NormName) -> None:
        if norm in ("linf", "l2") and norm not in self.norms:
            raise UserError(f"norm: '{self.name}' keeps to {' or '.join(self.norms)} only, not '{norm}'.")
        wanted = Untargeted if aim.goal == "untargeted" else Targeted
        if wanted not in self.goals:
            raise UserError(f"goal: '{self.name}' cannot be {aim.goal}.")


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
        eps = budget.eps if budget.unit == "pixel" else budget.radius(images)
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
