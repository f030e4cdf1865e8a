"""Checks of what an attack returns and of what it must leave unchanged; `violations` lists the rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import TOLERANCE, Budget
from robustcaps.attacks.violations import Violation
from robustcaps.models.base import Classifier


def find_violations(adversarial: Any, images: Tensor, budget: Budget) -> list[Violation | None]:
    """Return the rule that each adversarial image breaks, None where it breaks none."""
    batch_violation = _find_batch_violation(adversarial, images)
    if batch_violation:
        return [batch_violation] * len(images)
    adversarial = adversarial.detach()
    finite = torch.isfinite(adversarial).flatten(1).all(1)
    inside_box = ((adversarial >= -TOLERANCE) & (adversarial <= 1 + TOLERANCE)).flatten(1).all(1)
    inside_ball = budget.ball.size(adversarial - images) <= budget.max_size(images)
    misplaced = torch.zeros_like(finite)
    for row in torch.nonzero(finite & inside_box & ~inside_ball).flatten():
        misplaced[row] = (budget.ball.size(images - adversarial[row]) <= budget.max_size(images)).any()
    checks = torch.stack([~finite, ~inside_box, misplaced, ~inside_ball], 1).tolist()
    return [
        next((violation for violation, is_broken in zip(_IMAGE_VIOLATIONS, sample, strict=True) if is_broken), None)
        for sample in checks
    ]


_IMAGE_VIOLATIONS = (Violation.NOT_FINITE, Violation.OUTSIDE_BOX, Violation.WRONG_ORDER, Violation.OUTSIDE_BALL)
"""Rules for a single image, in the order in which they are reported."""


def _find_batch_violation(adversarial: Any, images: Tensor) -> Violation | None:
    if type(adversarial) not in (Tensor, nn.Parameter):  # a subclass could override the comparisons below
        return Violation.NOT_A_TENSOR
    if adversarial.shape != images.shape:
        return Violation.WRONG_SHAPE
    if adversarial.dtype != images.dtype:
        return Violation.WRONG_DTYPE
    return Violation.WRONG_DEVICE if adversarial.device != images.device else None


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A copy of everything that an attack must not change: the model, its inputs, and the global state of torch."""

    model: nn.Module
    tables: list[tuple[nn.Module, dict[str, dict[Any, Any]]]]
    """Each module with copies of its tables of children, parameters, buffers and hooks."""
    classes: list[tuple[nn.Module, type[nn.Module]]]
    """Each module with its class."""
    functions: list[tuple[nn.Module | type, dict[str, Any]]]
    """Each class with its methods, then each module with the callables set on the instance."""
    attributes: list[tuple[nn.Module, dict[str, Any]]]
    """Each module with its settings."""
    tensors: dict[str, Tensor]
    """Copies of all parameters and buffers."""
    training_modes: dict[str, bool]
    requires_grad: dict[str, bool]
    rng_states: tuple[Any, ...]
    grad_enabled: bool
    torch_settings: list[Any]
    """Values in the order of `_TORCH_SETTINGS`."""
    inputs: tuple[tuple[Tensor, Tensor], ...]
    """Pairs (tensor passed to the attack, original that it must remain equal to)."""

    @classmethod
    def take(cls, model: nn.Module, *inputs: tuple[Tensor, Tensor]) -> Snapshot:
        """Copy the state of a model, of torch, and pairs (tensor passed to the attack, original)."""
        return cls(
            model=model,
            tables=[(module, _copy_tables(module)) for module in model.modules()],
            classes=[(module, type(module)) for module in model.modules()],
            functions=[(owner, _own_functions(owner)) for owner in _modules_and_classes(model)],
            attributes=[
                (module, _settings(module, with_numbers=isinstance(model, Classifier))) for module in model.modules()
            ],
            tensors={name: tensor.detach().clone() for name, tensor in _parameters_and_buffers(model).items()},
            training_modes={name: module.training for name, module in model.named_modules()},
            requires_grad={name: parameter.requires_grad for name, parameter in model.named_parameters()},
            rng_states=_rng_states(),
            grad_enabled=torch.is_grad_enabled(),
            torch_settings=[read() for read, _ in _TORCH_SETTINGS],
            inputs=inputs,
        )

    def restore(self) -> Violation | None:
        """Restore everything and return the first rule that the attack broke, if any."""
        torch_settings = self._restore_torch_settings()  # first, because the other steps create tensors
        structure = [self._restore_functions(), self._restore_tables(), self._restore_attributes()]
        values = [self._restore_tensors(), self._restore_requires_grad(), self._restore_modes(), self._restore_inputs()]
        violations = [*structure, *values, self._restore_rng_states(), self._restore_grad_mode(), torch_settings]
        return next(filter(None, violations), None)

    def _restore_tables(self) -> Violation | None:
        violation = None
        for module, tables in self.tables:
            for name, before in tables.items():
                now = vars(module)[name]
                if not _is_same_table(now, before, compare_values=name != "_buffers"):
                    violation = Violation.CHANGED_STRUCTURE
                    now.clear()
                    now.update(before)
        return violation

    def _restore_attributes(self) -> Violation | None:
        violation = None
        for module, attributes in self.attributes:
            for name, before in attributes.items():
                if vars(module).get(name, _MISSING) != before:
                    violation = Violation.CHANGED_STRUCTURE
                    setattr(module, name, before)
        return violation

    def _restore_functions(self) -> Violation | None:
        swapped = [(module, original) for module, original in self.classes if type(module) is not original]
        for module, original in swapped:
            module.__class__ = original
        changed = [(owner, before) for owner, before in self.functions if not _has_functions(owner, before)]
        for owner, before in changed:
            _set_functions(owner, before)
        return Violation.CHANGED_STRUCTURE if swapped or changed else None

    def _restore_torch_settings(self) -> Violation | None:
        violation = None
        for (read, write), before in zip(_TORCH_SETTINGS, self.torch_settings, strict=True):
            if read() != before:
                violation = Violation.CHANGED_TORCH_SETTINGS
                write(before)
        return violation

    def _restore_grad_mode(self) -> Violation | None:
        if torch.is_grad_enabled() == self.grad_enabled:
            return None
        torch.set_grad_enabled(self.grad_enabled)
        return Violation.CHANGED_GRAD_MODE

    def _restore_tensors(self) -> Violation | None:
        now = _parameters_and_buffers(self.model)
        changed = {n: t for n, t in now.items() if n in self.tensors and not _is_equal(t, self.tensors[n])}
        for name, tensor in changed.items():
            tensor.data = self.tensors[name].clone()  # not copied in place, since shape or dtype may differ
        if not changed:
            return None
        parameters = dict(self.model.named_parameters())
        return Violation.CHANGED_WEIGHTS if changed.keys() & parameters.keys() else Violation.CHANGED_BUFFERS

    def _restore_requires_grad(self) -> Violation | None:
        parameters = dict(self.model.named_parameters())
        changed = [p for name, p in parameters.items() if p.requires_grad != self.requires_grad[name]]
        for parameter in changed:
            parameter.requires_grad_(not parameter.requires_grad)
        return Violation.CHANGED_REQUIRES_GRAD if changed else None

    def _restore_modes(self) -> Violation | None:
        changed = [m for name, m in self.model.named_modules() if m.training != self.training_modes[name]]
        for module in changed:
            module.training = not module.training
        return Violation.CHANGED_MODE if changed else None

    def _restore_inputs(self) -> Violation | None:
        changed = [pair for pair in self.inputs if not _is_equal(pair[0].detach(), pair[1])]
        for passed, original in changed:
            passed.data = original.detach().clone()
        for passed, _ in self.inputs:
            passed.grad = None  # otherwise the gradients of all budgets would add up
            if passed.requires_grad:
                passed.requires_grad_(False)  # noqa: FBT003
        return Violation.CHANGED_INPUTS if changed else None

    def _restore_rng_states(self) -> Violation | None:
        if _are_same_rng_states(_rng_states(), self.rng_states):
            return None
        torch.set_rng_state(self.rng_states[0])
        random.setstate(self.rng_states[1])
        np.random.set_state(self.rng_states[2])  # noqa: NPY002
        return Violation.CHANGED_GLOBAL_RNG


def _is_equal(now: Tensor, before: Tensor) -> bool:
    """Return whether two tensors hold the same values; NaN equals NaN."""
    if now.shape != before.shape or now.dtype != before.dtype:
        return False
    return torch.equal(now, before) or bool(torch.allclose(now, before, rtol=0, atol=0, equal_nan=True))


def _copy_tables(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Return copies of a module's tables: _modules, _parameters, _buffers and its hooks."""
    tables = {name: table for name, table in vars(module).items() if isinstance(table, dict)}
    wanted = {"_modules", "_parameters", "_buffers"}
    return {name: dict(table) for name, table in tables.items() if name in wanted or name.endswith("hooks")}


_MISSING = object()


def _settings(module: nn.Module, *, with_numbers: bool) -> dict[str, Any]:
    """Return the public attributes of a module that are strings, booleans or dataclasses, and numbers if requested.

    Numbers are compared for models of this package only; other models may keep counters that they change themselves.
    """
    types = (bool, str, int, float, tuple) if with_numbers else (bool, str)
    own = {name: value for name, value in vars(module).items() if name != "training" and not name.startswith("_")}
    return {name: value for name, value in own.items() if isinstance(value, types) or is_dataclass(value)}


def _is_same_table(now: dict[Any, Any], before: dict[Any, Any], *, compare_values: bool) -> bool:
    """Compare the keys of two tables, and the identity of their values unless a model may replace them itself."""
    return list(now) == list(before) and (not compare_values or all(now[key] is before[key] for key in before))


def _own_functions(owner: nn.Module | type) -> dict[str, Any]:
    """Return the callables that a module or a class defines itself."""
    return {name: value for name, value in vars(owner).items() if callable(value)}


def _has_functions(owner: nn.Module | type, before: dict[str, Any]) -> bool:
    now = _own_functions(owner)
    return now.keys() == before.keys() and all(now[name] is function for name, function in before.items())


def _set_functions(owner: nn.Module | type, functions: dict[str, Any]) -> None:
    """Replace the callables of a module or a class by these."""
    for name in _own_functions(owner).keys() - functions.keys():
        delattr(owner, name)
    for name, function in functions.items():
        setattr(owner, name, function)


def _modules_and_classes(model: nn.Module) -> list[nn.Module | type]:
    """Return all classes of the model's modules, base classes included, followed by the modules."""
    modules = list(model.modules())
    return [*({base for module in modules for base in type(module).__mro__} - {object}), *modules]


def _parameters_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _rng_states() -> tuple[Any, ...]:
    # numpy's legacy generator is the one that plugins can change globally.
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def _are_same_rng_states(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    is_same_torch = bool(torch.equal(now[0], before[0]))
    is_same_numpy = bool(np.array_equal(now[2][1], before[2][1])) and now[2][2:] == before[2][2:]
    return is_same_torch and now[1] == before[1] and is_same_numpy


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # 'cpu' would slow down every tensor creation


_TORCH_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)
"""Functions that read and write each global setting of torch."""
