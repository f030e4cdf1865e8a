"""Nobody cheats: what an attack may return, and what it must leave as it found it; `violations` has the names."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import TOLERANCE, Budget
from robustcaps.models.base import Classifier


def proposal_violations(proposal: Any, images: Tensor, budget: Budget) -> list[str]:
    """Return the name of what is wrong with each sample's proposal, '' where nothing is."""
    whole = _wrong_kind(proposal, images)
    if whole:
        return [whole] * len(images)
    proposal = proposal.detach()
    finite = torch.isfinite(proposal).flatten(1).all(1)
    inside_box = ((proposal >= -TOLERANCE) & (proposal <= 1 + TOLERANCE)).flatten(1).all(1)
    inside_ball = budget.ball.size(proposal - images) <= budget.reach(images)
    misplaced = torch.zeros_like(finite)
    for row in torch.nonzero(finite & inside_box & ~inside_ball).flatten():
        misplaced[row] = (budget.ball.size(images - proposal[row]) <= budget.reach(images)).any()
    checks = torch.stack([~finite, ~inside_box, misplaced, ~inside_ball], 1).tolist()
    return [next((name for name, broken in zip(_IMAGE, found, strict=True) if broken), "") for found in checks]


_IMAGE = ("not-finite", "outside-box", "wrong-order", "outside-ball")
"""What can be wrong with a single image, the first of which is told."""


def _wrong_kind(proposal: Any, images: Tensor) -> str:
    if type(proposal) not in (Tensor, nn.Parameter):  # a subclass could answer every question as it likes
        return "not-a-tensor"
    for what in ("shape", "dtype", "device"):
        if getattr(proposal, what) != getattr(images, what):
            return f"wrong-{what}"
    return ""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What an attack must leave alone, as it was before: the model, its inputs, and the global state of torch."""

    model: nn.Module
    structure: list[tuple[nn.Module, dict[str, dict[Any, Any]]]]
    """Each module with copies of its tables of children, parameters, buffers and hooks."""
    kinds: list[tuple[nn.Module, type[nn.Module]]]
    """Each module with its class."""
    methods: list[tuple[nn.Module | type, dict[str, Any]]]
    """Each class with its methods, then each module with those set on itself."""
    values: list[tuple[nn.Module, dict[str, Any]]]
    """Each module with its settings."""
    state: dict[str, Tensor]
    modes: dict[str, bool]
    gradients: dict[str, bool]
    generators: tuple[Any, ...]
    grad_mode: bool
    settings: list[Any]
    """Of torch, in the order of `_SETTINGS`."""
    inputs: tuple[tuple[Tensor, Tensor], ...]
    """What an attack is given, and what it must still be equal to."""

    @classmethod
    def take(cls, model: nn.Module, *inputs: tuple[Tensor, Tensor]) -> Snapshot:
        """Remember a model, the global state, and pairs (what the attack is given, the original)."""
        return cls(
            model=model,
            structure=[(module, _tables(module)) for module in model.modules()],
            kinds=[(module, type(module)) for module in model.modules()],
            methods=[(owner, _functions(owner)) for owner in _owners(model)],
            values=[(module, _values(module, whole=isinstance(model, Classifier))) for module in model.modules()],
            state={name: tensor.detach().clone() for name, tensor in _state(model).items()},
            modes={name: module.training for name, module in model.named_modules()},
            gradients={name: parameter.requires_grad for name, parameter in model.named_parameters()},
            generators=_generators(),
            grad_mode=torch.is_grad_enabled(),
            settings=[read() for read, _ in _SETTINGS],
            inputs=inputs,
        )

    def restore(self) -> str:
        """Put everything back as it was and return the name of what an attack had changed, '' for nothing."""
        torch_settings = self._restore_settings()  # first: what follows makes tensors itself
        structure = [self._restore_methods(), self._restore_structure(), self._restore_values()]
        values = [self._restore_state(), self._restore_gradients(), self._restore_modes(), self._restore_inputs()]
        changes = [*structure, *values, self._restore_generators(), self._restore_grad_mode(), torch_settings]
        return next(filter(None, changes), "")

    def _restore_structure(self) -> str:
        changed = ""
        for module, tables in self.structure:
            for name, before in tables.items():
                now = vars(module)[name]
                if not _same_table(now, before, by_value=name != "_buffers"):
                    changed = "changed-structure"
                    now.clear()
                    now.update(before)
        return changed

    def _restore_values(self) -> str:
        changed = ""
        for module, values in self.values:
            for name, before in values.items():
                if vars(module).get(name, _GONE) != before:
                    changed = "changed-structure"
                    setattr(module, name, before)
        return changed

    def _restore_methods(self) -> str:
        swapped = [(module, kind) for module, kind in self.kinds if type(module) is not kind]
        for module, kind in swapped:
            module.__class__ = kind
        changed = [(owner, before) for owner, before in self.methods if not _same_functions(owner, before)]
        for owner, before in changed:
            _put_back(owner, before)
        return "changed-structure" if swapped or changed else ""

    def _restore_settings(self) -> str:
        changed = ""
        for (read, write), before in zip(_SETTINGS, self.settings, strict=True):
            if read() != before:
                changed = "changed-torch-settings"
                write(before)
        return changed

    def _restore_grad_mode(self) -> str:
        if torch.is_grad_enabled() == self.grad_mode:
            return ""
        torch.set_grad_enabled(self.grad_mode)
        return "changed-grad-mode"

    def _restore_state(self) -> str:
        changed = {n: t for n, t in _state(self.model).items() if n in self.state and not _same(t, self.state[n])}
        for name, tensor in changed.items():
            tensor.data = self.state[name].clone()  # not copied into it: it may have another shape or dtype by now
        parameters = dict(self.model.named_parameters())
        return "" if not changed else "changed-weights" if changed.keys() & parameters.keys() else "changed-buffers"

    def _restore_gradients(self) -> str:
        parameters = dict(self.model.named_parameters())
        changed = [p for name, p in parameters.items() if p.requires_grad != self.gradients[name]]
        for parameter in changed:
            parameter.requires_grad_(not parameter.requires_grad)
        return "changed-requires-grad" if changed else ""

    def _restore_modes(self) -> str:
        changed = [m for name, m in self.model.named_modules() if m.training != self.modes[name]]
        for module in changed:
            module.training = not module.training
        return "changed-mode" if changed else ""

    def _restore_inputs(self) -> str:
        changed = [pair for pair in self.inputs if not _same(pair[0].detach(), pair[1])]
        for given, original in changed:
            given.data = original.detach().clone()
        for given, _ in self.inputs:
            given.grad = None  # or the gradients of one budget would be added to the next one's
            if given.requires_grad:
                given.requires_grad_(False)  # noqa: FBT003
        return "changed-inputs" if changed else ""

    def _restore_generators(self) -> str:
        if _same_generators(_generators(), self.generators):
            return ""
        torch.set_rng_state(self.generators[0])
        random.setstate(self.generators[1])
        np.random.set_state(self.generators[2])  # noqa: NPY002
        return "changed-global-rng"


def _same(now: Tensor, before: Tensor) -> bool:
    """Return whether two tensors hold the same values; NaN equals NaN."""
    if now.shape != before.shape or now.dtype != before.dtype:
        return False
    return torch.equal(now, before) or bool(torch.allclose(now, before, rtol=0, atol=0, equal_nan=True))


def _tables(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """Return copies of a module's own tables: _modules, _parameters, _buffers and those of its hooks."""
    tables = {name: table for name, table in vars(module).items() if isinstance(table, dict)}
    wanted = {"_modules", "_parameters", "_buffers"}
    return {name: dict(table) for name, table in tables.items() if name in wanted or name.endswith("hooks")}


_GONE = object()


def _values(module: nn.Module, *, whole: bool) -> dict[str, Any]:
    """Return the settings of a module: words, switches and records; of our own models numbers, too.

    Others may keep tallies in numbers, and change them by themselves.
    """
    kinds = (bool, str, int, float, tuple) if whole else (bool, str)
    own = {name: value for name, value in vars(module).items() if name != "training" and not name.startswith("_")}
    return {name: value for name, value in own.items() if isinstance(value, kinds) or is_dataclass(value)}


def _same_table(now: dict[Any, Any], before: dict[Any, Any], *, by_value: bool) -> bool:
    """Compare tables by their keys and, if `by_value`, by what they hold (a model may renew its own buffers)."""
    return list(now) == list(before) and (not by_value or all(now[key] is before[key] for key in before))


def _functions(owner: nn.Module | type) -> dict[str, Any]:
    """Return what can be called of what a module or a class has of its own."""
    return {name: value for name, value in vars(owner).items() if callable(value)}


def _same_functions(owner: nn.Module | type, before: dict[str, Any]) -> bool:
    now = _functions(owner)
    return now.keys() == before.keys() and all(now[name] is function for name, function in before.items())


def _put_back(owner: nn.Module | type, functions: dict[str, Any]) -> None:
    """Give a module or a class the functions it had, and no others."""
    for name in _functions(owner).keys() - functions.keys():
        delattr(owner, name)
    for name, function in functions.items():
        setattr(owner, name, function)


def _owners(model: nn.Module) -> list[nn.Module | type]:
    """Return every class that the model's modules are of, and the modules."""
    modules = list(model.modules())
    return [*({kind for module in modules for kind in type(module).__mro__} - {object}), *modules]


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _generators() -> tuple[Any, ...]:
    # The legacy state is the one plugins can disturb, so it is the one to look at.
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def _same_generators(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    torch_same = bool(torch.equal(now[0], before[0]))
    numpy_same = bool(np.array_equal(now[2][1], before[2][1])) and now[2][2:] == before[2][2:]
    return torch_same and now[1] == before[1] and numpy_same


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None costs nothing; 'cpu' is looked up anew


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_default_device),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)
"""How global settings of torch are read and written."""
