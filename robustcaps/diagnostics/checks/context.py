"""A model under examination: its right answers are attacked, and what several checks need is computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Goal, Untargeted
from robustcaps.attacks.gradient import value_and_gradient
from robustcaps.attacks.losses import LOSSES, Loss, logit_margin
from robustcaps.attacks.norms import NormName
from robustcaps.data.base import Data
from robustcaps.diagnostics.checks.shielded_model import Subject
from robustcaps.models.inference import device_of, predict
from robustcaps.utils.sample_random import Draws

T = TypeVar("T")
BATCH = 128
PASSES = 15
"""How many passes decide what a randomised model answers."""

SURE = 3.0
"""The standard deviation of logits over classes where one stands out by 6 (of 4 classes) to 10 (of 10)."""

TextbookLoss = Literal["ce", "ce-scores", "training"]


@dataclass(frozen=True)
class Textbook:
    """The gradient attack whose number is in question: projected gradient descent, as everybody runs it."""

    loss: TextbookLoss
    steps: int
    step: float
    """As a share of eps."""


def plain_cross_entropy(scale: float) -> Loss:
    """Return a loss that climbs the cross-entropy of scaled outputs as it stands in every textbook.

    It underflows where a model is very sure: that is what it is here for.
    """

    def loss(model: CountedModel, images: Tensor, goal: Goal) -> tuple[Tensor, Tensor]:
        outputs = model(images)
        return F.cross_entropy(scale * outputs, goal.classes, reduction="none"), outputs

    return loss


@dataclass(frozen=True, eq=False)
class Ascent:
    """A loss (n,) and its gradient in the images."""

    value: Tensor
    gradient: Tensor


@dataclass(frozen=True, eq=False)
class Contest:
    """The samples that an attack was tried on, and a mask (n,) of all those that it fooled."""

    tried: Tensor
    fooled: Tensor


class Case:
    """A model, its data and a budget; `once` keeps what was measured, `contests` what attacks achieved.

    Everything is about the samples that the model answers right: `images` and `labels`, n of them.
    """

    def __init__(
        self, model: nn.Module, data: Data, eps: float, *, norm: NormName, textbook: Textbook, seed: int
    ) -> None:
        self.model = model
        self.data = data
        self.eps = eps
        self.budget = Budget(eps, norm)
        self.textbook = textbook
        self.seed = seed
        self.device = device_of(model)
        self.subject = Subject(model)
        self.all_images, self.all_labels = data.images.to(self.device), data.labels.to(self.device)
        self.everything = CountedModel(self.subject, Counts.zeros(len(data)))
        self._measured: dict[Callable[[Case], Any], Any] = {}
        self.contests: dict[str, Contest] = {}
        """By attack that was tried on what others had left: how it went."""

    def once(self, measure: Callable[[Case], T]) -> T:
        """Return what a function of this case gives; it is called the first time only."""
        if measure not in self._measured:
            self._measured[measure] = measure(self)
        result: T = self._measured[measure]
        return result

    @functools.cached_property
    def outputs(self) -> Tensor:
        """What the model answers to all images of the data, (N, classes)."""
        return self._outputs(self.everything, self.all_images)

    @functools.cached_property
    def spread(self) -> float:
        """How much the outputs of an image typically differ from class to class."""
        return float(self.outputs.std(1).nanmean().clamp_min(1e-38))

    @functools.cached_property
    def objective(self) -> Loss:
        """What the textbook attack climbs.

        Small outputs are scaled up to the spread of a network that is sure of its answers: softmax is nearly uniform on
        them, and would lead to the mean of the other classes, whatever the model.
        """
        if self.textbook.loss == "ce":
            return plain_cross_entropy(max(1.0, SURE / self.spread))
        return LOSSES[self.textbook.loss]

    @functools.cached_property
    def wobble(self) -> float:
        """How much the outputs change from pass to pass on the same image, as a share of their spread, at most."""
        passes = torch.stack([self._outputs(self.everything, self.all_images) for _ in range(3)])
        return float((passes - self.outputs).abs().nan_to_num(0.0).amax()) / self.spread

    @property
    def randomised(self) -> bool:
        """Whether the model gives one image several answers."""
        return self.wobble > 1e-4

    @functools.cached_property
    def right(self) -> Tensor:
        """The positions of the samples that are answered right; for a randomised model, most of the time."""
        wrong = self._wrong(self.everything, self.all_images, self.all_labels)
        return torch.nonzero(~wrong).flatten()

    @property
    def n(self) -> int:
        """How many samples are answered right."""
        return len(self.right)

    @functools.cached_property
    def images(self) -> Tensor:
        """The images that are answered right."""
        return self.all_images[self.right]

    @functools.cached_property
    def labels(self) -> Tensor:
        """Their labels."""
        return self.all_labels[self.right]

    @functools.cached_property
    def counted(self) -> CountedModel:
        """The shielded model, for the samples that are answered right."""
        return self.everything.select(self.right)

    @functools.cached_property
    def rows(self) -> Tensor:
        """0..n-1: all samples that are answered right."""
        return torch.arange(self.n, device=self.device)

    def draws(self, rows: Tensor) -> Draws:
        """Return the source of randomness of some samples."""
        return Draws(self.seed, self.right[rows])

    def goal(self, rows: Tensor) -> Untargeted:
        """Return the goal of some samples: any class but their label."""
        return Untargeted(self.labels[rows])

    def slope(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the gradient of the outputs' margin at images of some samples."""
        return self.climbing(logit_margin, self.counted, images, rows).gradient

    def climbing(self, loss: Loss, model: CountedModel, images: Tensor, rows: Tensor) -> Ascent:
        """Return a loss and its gradient at images of some samples."""
        values, gradients = torch.empty_like(images[:, 0, 0, 0]), torch.empty_like(images)
        for start, part in batches(rows):
            place = slice(start, start + len(part))
            given = model.select(part), images[place], self.goal(part)
            values[place], gradients[place], _ = value_and_gradient(loss, *given)
        return Ascent(values, gradients)

    @torch.no_grad()
    def margin(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the best other output minus that of the label, (n,) in float64."""
        outputs = self._outputs(self.counted.select(rows), images).double()
        own = outputs.gather(1, self.labels[rows][:, None])
        others = outputs.scatter(1, self.labels[rows][:, None], -torch.inf)
        return others.amax(1) - own[:, 0]

    def fooled(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return which of the images, of these samples, are answered wrong; images that are no images fool nobody."""
        usable = torch.isfinite(images).flatten(1).all(1)
        if len(rows) == 0:
            return usable
        return usable & self._wrong(self.counted.select(rows), images, self.labels[rows])

    def attack(
        self, attack: Attack, rows: Tensor, *, model: CountedModel | None = None, budget: Budget | None = None
    ) -> Tensor:
        """Return what an attack proposes for some samples; `model` is what it works on, if not the shielded one."""
        chosen = model or self.counted
        proposals = self.images[rows]
        for start, part in batches(rows):
            place = slice(start, start + len(part))
            given = chosen.select(part), self.images[part], self.goal(part), budget or self.budget, self.draws(part)
            proposals[place] = attack.run(*given).detach()
        return proposals

    @torch.no_grad()
    def _outputs(self, model: CountedModel, images: Tensor) -> Tensor:
        rows = torch.arange(len(images), device=images.device)
        return torch.cat([model.select(part)(images[part]) for _, part in batches(rows)])

    def _wrong(self, model: CountedModel, images: Tensor, labels: Tensor) -> Tensor:
        passes = PASSES if self.randomised else 1
        wrong = sum((predict(self._outputs(model, images)) != labels).long() for _ in range(passes))
        return torch.as_tensor(wrong * 2 > passes)


def batches(rows: Tensor, size: int = BATCH) -> list[tuple[int, Tensor]]:
    """Return rows in batches, each with the place of its first one."""
    return [(start, rows[start : start + size]) for start in range(0, len(rows), size)]
