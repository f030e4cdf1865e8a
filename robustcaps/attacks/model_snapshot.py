"""A copy of everything about a model that an attack must not change."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustcaps.attacks.violations import Violation
from robustcaps.models.base import Classifier


@dataclass(frozen=True, eq=False)
class ModelSnapshot:
    """A copy of a model's layers, methods, settings, weights, buffers and modes."""

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

    @classmethod
    def take(cls, model: nn.Module) -> ModelSnapshot:
        """Copy the state of a model."""
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
        )

    def restore(self) -> Violation | None:
        """Restore the model and return the first rule that the attack broke, if any."""
        structure = [self._restore_functions(), self._restore_tables(), self._restore_attributes()]
        values = [self._restore_tensors(), self._restore_requires_grad(), self._restore_modes()]
        return next(filter(None, [*structure, *values]), None)

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

    def _restore_tensors(self) -> Violation | None:
        now = _parameters_and_buffers(self.model)
        changed = {n: t for n, t in now.items() if n in self.tensors and not is_equal(t, self.tensors[n])}
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


def is_equal(now: Tensor, before: Tensor) -> bool:
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
