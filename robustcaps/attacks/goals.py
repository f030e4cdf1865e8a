"""What an attack wants: a goal is an object, per sample, and knows when it is reached."""

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
"""The stream of random numbers that random targets come from: none that an attack would draw from."""


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


CHOSEN = ("least-likely", "random", "every")
"""Words for targets that are not one given class."""


@dataclass(frozen=True)
class Aim:
    """What a user asks for, before there are samples: untargeted, or a target class.

    The target is a class by name or number, 'every' class in turn, the one that the model finds 'least-likely' on the
    clean image, or a 'random' one other than the label.
    """

    goal: Literal["untargeted", "targeted"] = "untargeted"
    target: int | str | None = None

    def __post_init__(self) -> None:
        if self.goal == "untargeted" and self.target is not None:
            raise UserError("target: only a targeted goal has one; set goal = 'targeted'.")

    def goals(
        self, labels: Tensor, class_names: tuple[str, ...], logits: Tensor, draws: Draws
    ) -> Iterator[tuple[Tensor | None, Goal]]:
        """Yield (target of each sample or None, goal): one goal, or one per class for 'every'."""
        if self.goal == "untargeted":
            yield None, Untargeted(labels)
            return
        for target in self.targets(class_names):
            classes = _classes(target, labels, logits[:, : len(class_names)], draws)
            yield classes, Targeted(classes)

    def targets(self, class_names: tuple[str, ...]) -> list[int | str]:
        """Return the target classes; 'every' includes the true one, as in Hinton et al. (2018)."""
        if self.target is None or self.target == "every":
            return list(range(len(class_names)))
        if isinstance(self.target, str):
            if self.target in class_names:
                return [class_names.index(self.target)]
            if self.target in CHOSEN:
                return [self.target]
            raise UserError(
                f"target: unknown class '{self.target}'. {did_you_mean(self.target, (*class_names, *CHOSEN))}"
            )
        if not 0 <= self.target < len(class_names):
            raise UserError(f"target: class {self.target} is not in 0..{len(class_names) - 1}.")
        return [self.target]


def _classes(target: int | str, labels: Tensor, logits: Tensor, draws: Draws) -> Tensor:
    """Return the target of each sample (n,)."""
    if target == "least-likely":
        return logits.argmin(1)
    if target == "random":
        others = logits.shape[1] - 1
        return (labels + 1 + draws.integers(others, stream=TARGET_STREAM)) % (others + 1)
    return torch.full_like(labels, int(target))
