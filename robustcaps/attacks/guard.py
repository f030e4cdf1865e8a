"""Checks of what an attack returns and of what it must leave unchanged; `violations` lists the rules."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcaps.attacks.budgets import TOLERANCE, Budget
from robustcaps.attacks.goals import Goal
from robustcaps.attacks.model_snapshot import ModelSnapshot, is_equal
from robustcaps.attacks.spatial.budgets import MAX_DIFFERENCE, TransformationBudget, TransformedImages
from robustcaps.attacks.violations import Violation


def find_violations(adversarial: Any, images: Tensor, budget: Budget) -> list[Violation | None]:
    """Return the rule that each adversarial image breaks, None where it breaks none."""
    if isinstance(budget, TransformationBudget):
        return _find_transformation_violations(adversarial, images, budget)
    batch_violation = _find_batch_violation(adversarial, images)
    if batch_violation:
        return [batch_violation] * len(images)
    adversarial = adversarial.detach()
    inside_ball = budget.ball.size(adversarial - images) <= budget.max_size(images)
    lowest, highest = torch.aminmax(adversarial)  # both are NaN if any pixel is
    if bool((lowest >= -TOLERANCE) & (highest <= 1 + TOLERANCE) & inside_ball.all()):
        return [None] * len(images)
    finite = torch.isfinite(adversarial).flatten(1).all(1)
    inside_box = ((adversarial >= -TOLERANCE) & (adversarial <= 1 + TOLERANCE)).flatten(1).all(1)
    misplaced = torch.zeros_like(finite)
    for row in torch.nonzero(finite & inside_box & ~inside_ball).flatten():
        misplaced[row] = (budget.ball.size(images - adversarial[row]) <= budget.max_size(images)).any()
    broken = {
        Violation.NOT_FINITE: ~finite,
        Violation.OUTSIDE_BOX: ~inside_box,
        Violation.WRONG_ORDER: misplaced,
        Violation.OUTSIDE_BALL: ~inside_ball,
    }
    return _first_broken(broken)


def _find_transformation_violations(
    proposal: Any, images: Tensor, budget: TransformationBudget
) -> list[Violation | None]:
    """Return the rule that each image breaks; images are compared with those that their parameters give."""
    if type(proposal) is not TransformedImages:
        return [Violation.NO_PARAMETERS] * len(images)
    batch_violation = _find_batch_violation(proposal.images, images)
    expected_shape = (len(images), len(budget.parameter_names))
    if not batch_violation and not _is_matrix(proposal.parameters, expected_shape, images.device):
        batch_violation = Violation.NO_PARAMETERS
    if batch_violation:
        return [batch_violation] * len(images)
    adversarial, parameters = proposal.images.detach(), proposal.parameters.detach()
    inside = budget.contains(images, parameters)
    expected = budget.transform(images, torch.where(inside[:, None], parameters, 0.0), anew=True)
    is_same = ((adversarial - expected).abs() <= MAX_DIFFERENCE).flatten(1).all(1)
    finite = torch.isfinite(adversarial).flatten(1).all(1)
    broken = {
        Violation.NOT_FINITE: ~finite,
        Violation.OUTSIDE_RANGE: ~inside,
        Violation.OTHER_IMAGE: ~is_same,
    }
    return _first_broken(broken)


def _is_matrix(parameters: Any, shape: tuple[int, int], device: torch.device) -> bool:
    """Return whether something is a plain float64 tensor of a shape."""
    is_plain = type(parameters) is Tensor and parameters.dtype == torch.float64
    return is_plain and parameters.shape == shape and parameters.device == device


def _first_broken(broken: dict[Violation, Tensor]) -> list[Violation | None]:
    """Return the first rule that each sample breaks, from masks in the order in which rules are reported."""
    masks = torch.stack(list(broken.values()), 1).tolist()
    return [next((rule for rule, is_broken in zip(broken, sample, strict=True) if is_broken), None) for sample in masks]


def _find_batch_violation(adversarial: Any, images: Tensor) -> Violation | None:
    if type(adversarial) not in (Tensor, nn.Parameter):  # a subclass could override the comparisons below
        return Violation.NOT_A_TENSOR
    if adversarial.shape != images.shape:
        return Violation.WRONG_SHAPE
    if adversarial.dtype != images.dtype:
        return Violation.WRONG_DTYPE
    return Violation.WRONG_DEVICE if adversarial.device != images.device else None


@dataclass(frozen=True, eq=False)
class GlobalState:
    """A copy of the global state of torch and of the random number generators, which an attack must not change."""

    rng_states: tuple[Any, ...]
    grad_enabled: bool
    torch_settings: list[Any]
    """Values in the order of `_TORCH_SETTINGS`."""

    @classmethod
    def take(cls) -> GlobalState:
        """Copy the current state."""
        return cls(_rng_states(), torch.is_grad_enabled(), [read() for read, _ in _TORCH_SETTINGS])

    def restore_torch_settings(self) -> Violation | None:
        """Restore the settings of torch and return the rule that is broken if they differ."""
        violation = None
        for (read, write), before in zip(_TORCH_SETTINGS, self.torch_settings, strict=True):
            if read() != before:
                violation = Violation.CHANGED_TORCH_SETTINGS
                write(before)
        return violation

    def restore_grad_mode(self) -> Violation | None:
        """Restore whether gradients are computed and return the rule that is broken if that differs."""
        if torch.is_grad_enabled() == self.grad_enabled:
            return None
        torch.set_grad_enabled(self.grad_enabled)
        return Violation.CHANGED_GRAD_MODE

    def restore_rng_states(self) -> Violation | None:
        """Restore the random number generators and return the rule that is broken if they differ."""
        if _are_same_rng_states(_rng_states(), self.rng_states):
            return None
        torch.set_rng_state(self.rng_states[0])
        random.setstate(self.rng_states[1])
        np.random.set_state(self.rng_states[2])  # noqa: NPY002
        return Violation.CHANGED_GLOBAL_RNG


class Guard(ABC):
    """Watches what an attack must leave unchanged: the model, the global state, the images and classes it is handed."""

    checks_counts: bool
    """Whether the counts of passes are checked after every budget as well."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._inputs: tuple[tuple[Tensor, Tensor], ...] = ()

    def begin(self, images: Tensor, goal: Goal) -> tuple[Tensor, Goal]:
        """Copy what the batch must leave unchanged; return copies of the images and the goal for the attack."""
        handed_images = images.detach().clone()
        handed_goal = goal.select(torch.arange(len(images), device=images.device))
        self._inputs = (handed_images, images), (handed_goal.classes, goal.classes)
        return handed_images, handed_goal

    @abstractmethod
    def check(self) -> Violation | None:
        """Restore what was changed by the end of a budget; return the first rule that the attack broke, if any."""

    def _restore_inputs(self) -> Violation | None:
        changed = [pair for pair in self._inputs if not is_equal(pair[0].detach(), pair[1])]
        for handed, original in changed:
            handed.data = original.detach().clone()
        for handed, _ in self._inputs:
            handed.grad = None  # otherwise the gradients of all budgets would add up
            if handed.requires_grad:
                handed.requires_grad_(False)  # noqa: FBT003
        return Violation.CHANGED_INPUTS if changed else None


@dataclass(frozen=True, eq=False)
class _State:
    """Copies of the model and of the global state."""

    model: ModelSnapshot
    global_state: GlobalState

    @classmethod
    def take(cls, model: nn.Module) -> _State:
        return cls(ModelSnapshot.take(model), GlobalState.take())

    def restore(self) -> Violation | None:
        """Restore what differs and return the first rule that the attack broke, if any."""
        torch_settings = self.global_state.restore_torch_settings()  # first, because the other steps create tensors
        model, rng_states = self.model.restore(), self.global_state.restore_rng_states()
        found = model, rng_states, self.global_state.restore_grad_mode(), torch_settings
        return next(filter(None, found), None)


class FullGuard(Guard):
    """Compares everything after every budget, with copies that are made for every batch."""

    checks_counts = True
    _state: _State

    def begin(self, images: Tensor, goal: Goal) -> tuple[Tensor, Goal]:
        """Copy everything."""
        self._state = _State.take(self.model)
        return super().begin(images, goal)

    def check(self) -> Violation | None:
        """Restore everything."""
        found = self._state.restore(), self._restore_inputs()
        return next(filter(None, found), None)


class QuickGuard(Guard):
    """For attacks of this package: compares the model and the global state only once, at the end of all batches.

    If `finish` finds a violation, the rows have to be computed again with a full guard, which tells those affected.
    """

    checks_counts = False
    _state: _State | None = None

    def begin(self, images: Tensor, goal: Goal) -> tuple[Tensor, Goal]:
        """Copy the inputs, and before the first batch everything else."""
        self._state = self._state or _State.take(self.model)
        return super().begin(images, goal)

    def check(self) -> Violation | None:
        """Restore the inputs."""
        return self._restore_inputs()

    def finish(self) -> Violation | None:
        """Restore everything else and return the first rule that the attack broke, if any."""
        return self._state.restore() if self._state else None


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
