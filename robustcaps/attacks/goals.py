"""What an attack wants: a goal is an object, per sample, and knows when it is reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from robustcaps.errors import UserError, did_you_mean


@dataclass(frozen=True, eq=False)
class Goal(ABC):
    """One wish per sample; `classes` (n,) are the classes the wish is about."""

    classes: Tensor
    sign: ClassVar[int]
    """+1 where the loss of `classes` is to rise, -1 where it is to fall."""

    @abstractmethod
    def reached(self, predictions: Tensor) -> Tensor:
        """Return which predictions (n,) fulfil the goal, as a mask (n,)."""

    def select(self, rows: Tensor) -> Self:
        """Return the goal of some of the samples."""
        return type(self)(self.classes[rows])


class Untargeted(Goal):
    """Any class but the label."""

    sign = 1

    def reached(self, predictions: Tensor) -> Tensor:
        """Return which predictions differ from the label."""
        return predictions != self.classes


class Targeted(Goal):
    """Exactly the given class."""

    sign = -1

    def reached(self, predictions: Tensor) -> Tensor:
        """Return which predictions are the target."""
        return predictions == self.classes


@dataclass(frozen=True)
class Aim:
    """What a user asks for, before there are samples: untargeted, one target class, or every class in turn."""

    goal: Literal["untargeted", "targeted"] = "untargeted"
    target: int | str | None = None

    def __post_init__(self) -> None:
        if self.goal == "untargeted" and self.target is not None:
            raise UserError("target: only a targeted goal has one; set goal = 'targeted'.")

    def goals(self, labels: Tensor, class_names: tuple[str, ...]) -> Iterator[tuple[int | None, Goal]]:
        """Yield (target class or None, goal): one for untargeted or a single class, one per class for 'every'."""
        if self.goal == "untargeted":
            yield None, Untargeted(labels)
            return
        for target in self.targets(class_names):
            yield target, Targeted(torch.full_like(labels, target))

    def targets(self, class_names: tuple[str, ...]) -> list[int]:
        """Return the target classes; 'every' includes the true one, as in Hinton et al. (2018)."""
        if self.target is None or self.target == "every":
            return list(range(len(class_names)))
        if isinstance(self.target, str):
            if self.target not in class_names:
                raise UserError(
                    f"target: unknown class '{self.target}'. {did_you_mean(self.target, (*class_names, 'every'))}"
                )
            return [class_names.index(self.target)]
        if not 0 <= self.target < len(class_names):
            raise UserError(f"target: class {self.target} is not in 0..{len(class_names) - 1}.")
        return [self.target]
