"""Goals of an attack: a goal knows, per sample, which predictions count as a success."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from robustcaps.errors import UserError, did_you_mean
from robustcaps.utils.sample_random import Draws

TARGET_STREAM = 2**31 - 1
"""The random stream of random targets; no attack uses it."""


@dataclass(frozen=True, eq=False)
class Goal(ABC):
    """What an attack is to achieve on each sample; `classes` (n,) are the labels or the targets."""

    classes: Tensor
    sign: ClassVar[int]
    """+1 if the loss of `classes` is to be maximised, -1 if it is to be minimised."""

    @abstractmethod
    def reached(self, predictions: Tensor) -> Tensor:
        """Return which predictions (n,) are a success, as a mask (n,)."""

    def select(self, rows: Tensor) -> Self:
        """Return the goal for a subset of the samples."""
        return type(self)(self.classes[rows])


class Untargeted(Goal):
    """Any class other than the label."""

    sign = 1

    def reached(self, predictions: Tensor) -> Tensor:
        """Return which predictions differ from the label."""
        return predictions != self.classes


@dataclass(frozen=True, eq=False)
class TowardsClass(Untargeted):
    """Any class other than the label, which is looked for in the direction of one class, `towards` (n,)."""

    towards: Tensor

    def select(self, rows: Tensor) -> Self:
        """Return the goal for a subset of the samples."""
        return type(self)(self.classes[rows], self.towards[rows])


class Targeted(Goal):
    """The target class."""

    sign = -1

    def reached(self, predictions: Tensor) -> Tensor:
        """Return which predictions equal the target."""
        return predictions == self.classes


TARGET_RULES = ("least-likely", "random", "every")
"""Values of `target` that choose the target classes by a rule."""


@dataclass(frozen=True)
class GoalSpec:
    """A goal as the user specifies it, before there are samples: untargeted, or targeted with a target.

    The target is a class name or number, 'every' class in turn, the class that is 'least-likely' on the clean image, or
    a 'random' class other than the label.
    """

    goal: Literal["untargeted", "targeted"] = "untargeted"
    target: int | str | None = None

    def __post_init__(self) -> None:
        if self.goal == "untargeted" and self.target is not None:
            raise UserError("target: only a targeted goal has one; set goal = 'targeted'.")

    @classmethod
    def parse(cls, goal: str, target: int | str | None) -> GoalSpec:
        """Return the specification of a goal by name; a targeted goal without a target has every class in turn."""
        if goal == "untargeted":
            return cls("untargeted", target)
        if goal == "targeted":
            return cls("targeted", "every" if target is None else target)
        raise UserError(f"goal: must be 'untargeted' or 'targeted', not '{goal}'.")

    def resolve(
        self, labels: Tensor, class_names: tuple[str, ...], logits: Tensor, draws: Draws
    ) -> Iterator[tuple[Tensor | None, Goal]]:
        """Yield (target of each sample or None, goal): a single goal, or one per class for 'every'."""
        if self.goal == "untargeted":
            yield None, Untargeted(labels)
            return
        for target in self.targets(class_names):
            classes = _target_classes(target, labels, logits[:, : len(class_names)], draws)
            yield classes, Targeted(classes)

    def targets(self, class_names: tuple[str, ...]) -> list[int | str]:
        """Return the target classes; 'every' includes the true class, as in Hinton et al. (2018)."""
        if self.target is None or self.target == "every":
            return list(range(len(class_names)))
        if isinstance(self.target, str):
            if self.target in class_names:
                return [class_names.index(self.target)]
            if self.target in TARGET_RULES:
                return [self.target]
            raise UserError(
                f"target: unknown class '{self.target}'. {did_you_mean(self.target, (*class_names, *TARGET_RULES))}"
            )
        if not 0 <= self.target < len(class_names):
            raise UserError(f"target: class {self.target} is not in 0..{len(class_names) - 1}.")
        return [self.target]


def likeliest_wrong_classes(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the classes other than the label with the largest logits, (n, at most count), the likeliest first."""
    wrong = logits.scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1), dim=1).indices


def _target_classes(target: int | str, labels: Tensor, logits: Tensor, draws: Draws) -> Tensor:
    """Return the target class of each sample, (n,)."""
    if target == "least-likely":
        return logits.argmin(1)
    if target == "random":
        others = logits.shape[1] - 1
        return (labels + 1 + draws.integers(others, stream=TARGET_STREAM)) % (others + 1)
    return torch.full_like(labels, int(target))
