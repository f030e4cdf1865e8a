"""Base class of all attacks: subclasses craft adversarial images, and the base class checks them."""

from __future__ import annotations

import copy
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar, final

import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import Budget, check_norm, make_budgets
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Goal, GoalSpec, Targeted, Untargeted
from robustcaps.attacks.guard import FullGuard, Guard, find_violations
from robustcaps.attacks.norms import NORMS
from robustcaps.attacks.query_budget import QueryBudget
from robustcaps.attacks.spatial.affine import AffineBudget
from robustcaps.attacks.spatial.budgets import TransformationBudget, TransformedImages, images_of
from robustcaps.attacks.spatial.viewpoint import ViewpointBudget
from robustcaps.attacks.violations import Violation
from robustcaps.errors import UserError
from robustcaps.options import MAX_COUNT, NormName, Unit
from robustcaps.registry import ATTACKS
from robustcaps.utils.sample_random import Draws

TRANSFORMATIONS: dict[NormName, type[TransformationBudget]] = {"affine": AffineBudget, "viewpoint": ViewpointBudget}
"""Budgets that are no balls around the image."""


@dataclass(frozen=True, eq=False)
class AdversarialBatch:
    """The checked adversarial images of a batch for one budget."""

    budget: Budget
    images: Tensor
    """(n, channels, height, width): adversarial images, or the clean image where a rule was broken."""
    violations: list[Violation | None]
    """The rule that the attack broke on each sample, None where it broke none."""
    parameters: Tensor | None = None
    """(n, parameters) of a set of transformations; 0 where a rule was broken."""


class Attack(ABC):
    """Base class of all attacks. A subclass implements `run`, and `run_sweep` if budgets can share work."""

    name: str = ""
    norms: tuple[NormName, ...] = ("linf", "l2")
    """Norms that the attack supports."""
    default_norm: NormName = "linf"
    """The norm of the budgets if none is given."""
    ranges: Mapping[str, float] = {}
    """Further fields of the budgets of a set of transformations."""
    goals: tuple[type[Goal], ...] = (Untargeted, Targeted)
    """Goals that the attack supports."""
    needs_eps: bool = True
    """Whether the attack has a budget; if not, it runs once with eps 0."""
    passes: float = 1.0
    """Estimated maximum of forward passes per row, to forecast run times; a backward pass counts as two."""
    minimises_norm: bool = False
    """Whether the attack minimises the perturbation, so that the size of its perturbations is meaningful."""
    randomised: bool = False
    """Whether the result depends on the seed; if not, suites run the attack with one seed only."""
    draws_per_batch: bool = False
    """Whether it draws random numbers for whole batches, so that its rows depend on the batch size."""

    budgets: tuple[Budget, ...] = ()
    goal_spec: GoalSpec = GoalSpec()
    max_queries: int | None = None
    """Maximum number of queries of the attacked model per sample and budget; None for no limit."""
    inner_attacks: tuple[Attack, ...] = ()
    """Attacks that this attack runs, if any."""
    settings: dict[str, Any] | None = None
    """Name and options of an inner attack."""
    surrogates: tuple[str, ...] = ()
    """Names of the surrogate models, if any; `load_surrogates` loads them."""
    surrogate_label: str = ""
    """Value of the `surrogate` column if the attack does not query the attacked model."""

    def load_surrogates(self, load: Callable[[str], nn.Module]) -> None:
        """Load the surrogate models for the current dataset; called before a sweep."""
        for attack in self.inner_attacks:
            attack.load_surrogates(load)

    @abstractmethod
    def run(
        self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws
    ) -> Tensor | TransformedImages:
        """Return one adversarial image per image, inside the budget's ball and [0,1].

        For a budget of transformations, return `TransformedImages`: the images with the parameters that give them.

        Args:
            model: The attacked model, from images to logits.
            images: Clean images (n, channels, height, width) in [0,1].
            goal: What is to be achieved on each sample.
            budget: The ball around each image.
            draws: The only source of randomness that an attack may use.
        """

    def run_sweep(
        self, model: CountedModel, images: Tensor, goal: Goal, budgets: Sequence[Budget], draws: Draws
    ) -> Iterator[Tensor | TransformedImages]:
        """Yield the adversarial images for each budget in turn."""
        for budget in budgets:
            yield self.run(model, images, goal, budget, draws)

    @final
    def sweep(
        self,
        model: nn.Module,
        images: Tensor,
        goal: Goal,
        budgets: Sequence[Budget],
        draws: Draws | None = None,
        guard: Guard | None = None,
    ) -> Iterator[AdversarialBatch]:
        """Run the attack for every budget and yield its images, checked; restore whatever the attack changed.

        `draws` defaults to those of the first samples of a dataset with seed 0, `guard` to full checks of every budget.
        """
        counted = model if isinstance(model, CountedModel) else CountedModel(model, Counts.zeros(len(images)))
        all_rows = torch.arange(len(images), device=images.device)
        query_budget = None
        if self.max_queries:
            query_budget = QueryBudget(self.max_queries, counted.rows, images.detach().clone(), goal.select(all_rows))
        counted = counted.for_attack(images.detach().clone(), query_budget)
        guard = guard or FullGuard(counted.model)
        attack_images, attack_goal = guard.begin(images, goal)
        draws = draws or Draws(0, all_rows)
        attack_budgets = [budget.untrusted_copy() for budget in budgets]
        results = iter(self.run_sweep(counted, attack_images, attack_goal, attack_budgets, draws))
        for budget in budgets:
            before, total_before = counted.counts.copy(), counted.pass_state.total_forwards
            try:
                with counted.count_direct_calls():
                    if query_budget is None:
                        adversarial: Any = next(results, None)
                    else:
                        sweep_one = partial(self.run_sweep, counted, attack_images, attack_goal, [budget], draws)
                        adversarial = query_budget.run(budget, sweep_one)
            except BaseException:
                guard.check()  # the model may be attacked again
                raise
            violation = guard.check()
            if violation is None and guard.checks_counts and counted.has_tampered_counts(before, total_before):
                violation = Violation.CHANGED_COUNTS
            violations = _check(adversarial, images, budget, violation)
            valid, parameters = _discard_invalid(adversarial, images, violations)
            inner_violations = counted.list_inner_violations()
            violations = _add_inner_violations(violations, valid, images, inner_violations)
            yield AdversarialBatch(budget, valid, violations, parameters)

    @final
    def depends_on_batch_size(self) -> bool:
        """Return whether rows may depend on the batch size, be it because of an inner attack."""
        return self.draws_per_batch or any(inner.depends_on_batch_size() for inner in self.inner_attacks)

    @final
    def is_built_in(self) -> bool:
        """Return whether all code of the attack, its inner attacks included, belongs to this package."""
        own = [type(self), *filter(callable, vars(self).values())]
        return all(map(_is_of_this_package, own)) and all(inner.is_built_in() for inner in self.inner_attacks)

    def configure(
        self,
        eps: float | Sequence[float] | None = None,
        *,
        norm: NormName | None = None,
        unit: Unit | None = None,
        goal: str = "untargeted",
        target: int | str | None = None,
        name: str | None = None,
        max_queries: int | None = None,
    ) -> Self:
        """Return a copy of the attack with one budget per eps, a goal and a maximum number of queries."""
        norm = norm or self.default_norm
        configured = copy.copy(self)
        configured.name = name or self.name or type(self).__name__
        configured.goal_spec = GoalSpec.parse(goal, target)
        self._check_supported(configured.goal_spec, norm)
        if self.needs_eps and eps is None:
            raise UserError("eps: missing; pass a number or a list of numbers.")
        if max_queries is not None and not 1 <= max_queries <= MAX_COUNT:
            raise UserError(f"max_queries: must be from 1 to {MAX_COUNT:,}, not {max_queries}.")
        if max_queries is not None and norm in TRANSFORMATIONS:
            raise UserError(f"max_queries: cannot be set with norm '{norm}'; set the attack's own options instead.")
        configured.max_queries = max_queries
        configured.randomised = self.randomised or target == "random"
        kind, sweep = TRANSFORMATIONS.get(norm, Budget), eps if self.needs_eps and eps is not None else 0.0
        configured.budgets = make_budgets(sweep, norm, unit, kind=kind, **self.ranges)
        return configured

    def _check_supported(self, goal_spec: GoalSpec, norm: NormName) -> None:
        check_norm(norm)
        if norm not in self.norms:
            raise UserError(f"norm: '{self.name}' supports {' and '.join(self.norms)} only, not '{norm}'.")
        required = Untargeted if goal_spec.goal == "untargeted" else Targeted
        if required not in self.goals:
            raise UserError(f"goal: '{self.name}' does not support {goal_spec.goal} goals.")


def _is_of_this_package(code: Any) -> bool:
    """Return whether a class or function is what its module in this package holds under its name."""
    home = getattr(code, "__module__", None) or ""
    module = sys.modules.get(home) if home.partition(".")[0] == __name__.partition(".")[0] else None
    return module is not None and getattr(module, getattr(code, "__name__", ""), None) is code


def _check(adversarial: Any, images: Tensor, budget: Budget, violation: Violation | None) -> list[Violation | None]:
    """Return the violation of each sample: that of the whole batch if there is one, else that of its image."""
    if violation is None:
        return find_violations(adversarial, images, budget)
    return [violation] * len(images)


def _discard_invalid(
    adversarial: Any, images: Tensor, violations: list[Violation | None]
) -> tuple[Tensor, Tensor | None]:
    """Return the adversarial images, replaced by the clean image where a rule was broken, and their parameters."""
    is_transformed = isinstance(adversarial, TransformedImages)
    proposed = images_of(adversarial)
    if not any(violations):  # copies, as the attack may go on writing to its own tensors
        return proposed.detach().clone(), adversarial.parameters.detach().clone() if is_transformed else None
    is_valid = torch.tensor([violation is None for violation in violations], dtype=torch.bool, device=images.device)
    if not bool(is_valid.any()):
        return images, None
    parameters = torch.where(is_valid[:, None], adversarial.parameters.detach(), 0.0) if is_transformed else None
    return torch.where(is_valid[:, None, None, None], proposed.detach(), images), parameters


def _add_inner_violations(
    violations: list[Violation | None], valid: Tensor, images: Tensor, inner_violations: list[Violation | None]
) -> list[Violation | None]:
    """Report violations of inner attacks for samples on which nothing else changed the image."""
    if not any(inner_violations):
        return violations
    unchanged = (valid == images).flatten(1).all(1).tolist()
    return [
        own or (inner if is_unchanged else None)
        for own, inner, is_unchanged in zip(violations, inner_violations, unchanged, strict=True)
    ]


Plugin = TypeVar("Plugin", bound=Callable[..., Any])


class FunctionAttack(Attack):
    """A function (model, images, labels, eps, **options) -> images as an attack; it may take `draws` as well."""

    goals = (Untargeted,)
    norms = tuple(NORMS)

    def __init__(self, function: Callable[..., Tensor], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        self.randomised = "draws" in inspect.signature(function).parameters

    def run(self, model: CountedModel, images: Tensor, goal: Goal, budget: Budget, draws: Draws) -> Tensor:
        """Call the function; eps is a number in pixels, or a tensor (n, 1, 1, 1) if radii differ."""
        eps = budget.radius(images) if budget.shared_eps is None else budget.shared_eps
        extra = {"draws": draws} if self.randomised else {}
        return self.function(model, images, goal.classes, eps, **self.options, **extra)


def attack(name: str) -> Callable[[Plugin], Plugin]:
    """Register an attack: a function (model, images, labels, eps, **options) -> images, or an Attack subclass.

    Args:
        name: The name under which `load_attack` and suites find it.

    Returns:
        A decorator that returns the function or class unchanged.
    """

    def decorate(plugin: Plugin) -> Plugin:
        is_class = inspect.isclass(plugin) and issubclass(plugin, Attack)
        ATTACKS.add(name, plugin if is_class else _make_factory(plugin))
        return plugin

    return decorate


def _make_factory(function: Callable[..., Tensor]) -> Callable[..., Attack]:
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
