"""What all checks share: the diagnosed model, its correctly classified samples, the budget, and cached measurements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.budgets import Budget
from robustcaps.attacks.counting import CountedModel, Counts
from robustcaps.attacks.goals import Untargeted
from robustcaps.attacks.gradients import value_and_gradient
from robustcaps.attacks.losses import LOSSES, Loss, cross_entropy_loss, margin_loss
from robustcaps.attacks.norms import NormName
from robustcaps.attacks.spatial.budgets import images_of
from robustcaps.data.base import Data
from robustcaps.diagnostics.checks.shielded_model import ShieldedModel
from robustcaps.models.inference import device_of, predict
from robustcaps.utils.sample_random import Draws
from robustcaps.utils.seeds import derive_seed

T = TypeVar("T")
BATCH_SIZE = 128
PREDICTION_PASSES = 15
"""Number of passes whose majority is the prediction of a randomised model."""
CONFIDENT_SPREAD = 3.0
"""Standard deviation over classes of logits whose maximum exceeds the others by 6 (4 classes) to 10 (10 classes)."""
RANDOMISED_ABOVE = 1e-4
"""Relative change of the outputs between passes above which a model counts as randomised."""

BaselineLoss = Literal["ce", "ce-scores", "training"]


@dataclass(frozen=True)
class BaselineSettings:
    """Settings of the baseline attack, whose robust accuracy is in question: standard PGD with a random start."""

    loss: BaselineLoss
    steps: int
    step: float
    """Step size as a fraction of eps."""


@dataclass(frozen=True, eq=False)
class LossAndGradient:
    """An attack loss (n,) and its gradient with respect to the images."""

    value: Tensor
    gradient: Tensor


@dataclass(frozen=True, eq=False)
class AttackOutcome:
    """The samples that an attack was run on, and a mask (n,) over all samples of those that it fooled."""

    tried: Tensor
    fooled: Tensor


class DiagnosisContext:
    """A model, its data and a budget, with cached measurements and the outcomes of all attacks so far.

    `images` and `labels` are the n correctly classified samples; rows are positions among these.
    """

    def __init__(
        self, model: nn.Module, data: Data, eps: float, *, norm: NormName, baseline: BaselineSettings, seed: int
    ) -> None:
        self.model = model
        self.data = data
        self.eps = eps
        self.budget = Budget(eps, norm)
        self.baseline = baseline
        self.seed = seed
        self.device = device_of(model)
        self.shielded = ShieldedModel(model)
        self.all_images, self.all_labels = data.images.to(self.device), data.labels.to(self.device)
        self.counted_for_all = CountedModel(self.shielded, Counts.zeros(len(data)))
        self._cache: dict[Callable[[DiagnosisContext], Any], Any] = {}
        self.outcomes: dict[str, AttackOutcome] = {}
        """Outcomes of the attacks other than the baseline, by name."""

    def cached(self, measure: Callable[[DiagnosisContext], T]) -> T:
        """Return measure(self), which is computed only once."""
        if measure not in self._cache:
            self._cache[measure] = measure(self)
        result: T = self._cache[measure]
        return result

    @functools.cached_property
    def outputs(self) -> Tensor:
        """Outputs of the model for all images of the data, (N, classes)."""
        return self._outputs(self.counted_for_all, self.all_images)

    @functools.cached_property
    def output_spread(self) -> float:
        """Standard deviation of the outputs over classes, averaged over the images."""
        return float(self.outputs.std(1).nanmean().clamp_min(1e-38))

    @functools.cached_property
    def baseline_loss(self) -> Loss:
        """The loss that the baseline attack maximises.

        Small outputs are scaled up to the spread of a confident network. Otherwise their softmax is nearly uniform, and
        the gradient points to the mean of the other classes.
        """
        if self.baseline.loss == "ce":
            return functools.partial(cross_entropy_loss, logit_scale=max(1.0, CONFIDENT_SPREAD / self.output_spread))
        return LOSSES[self.baseline.loss]

    @functools.cached_property
    def output_noise(self) -> float:
        """Largest change of an output between passes over the same images, relative to the output spread."""
        passes = torch.stack([self._outputs(self.counted_for_all, self.all_images) for _ in range(3)])
        return float((passes - self.outputs).abs().nan_to_num(0.0).amax()) / self.output_spread

    @property
    def is_randomised(self) -> bool:
        """Whether the outputs differ between passes over the same images."""
        return self.output_noise > RANDOMISED_ABOVE

    @functools.cached_property
    def correct(self) -> Tensor:
        """Positions in the data of the correctly classified samples (a majority of passes, if randomised)."""
        wrong = self._misclassified(self.counted_for_all, self.all_images, self.all_labels)
        return torch.nonzero(~wrong).flatten()

    @property
    def n(self) -> int:
        """Number of correctly classified samples."""
        return len(self.correct)

    @functools.cached_property
    def images(self) -> Tensor:
        """Images of the correctly classified samples."""
        return self.all_images[self.correct]

    @functools.cached_property
    def labels(self) -> Tensor:
        """Labels of the correctly classified samples."""
        return self.all_labels[self.correct]

    @functools.cached_property
    def counted(self) -> CountedModel:
        """The shielded model for the correctly classified samples."""
        return self.counted_for_all.select(self.correct)

    @functools.cached_property
    def rows(self) -> Tensor:
        """All rows: 0..n-1."""
        return torch.arange(self.n, device=self.device)

    def draws(self, rows: Tensor, *, repetition: int = 0) -> Draws:
        """Return the per-sample random numbers of some rows; every repetition of an attack has others."""
        seed = derive_seed(self.seed, repetition) if repetition else self.seed
        return Draws(seed, self.correct[rows])

    def count(self, model: nn.Module) -> CountedModel:
        """Return another model in the form that attacks take, for the correctly classified samples."""
        return CountedModel(model, Counts.zeros(self.n))

    def goal(self, rows: Tensor) -> Untargeted:
        """Return the untargeted goal for some rows."""
        return Untargeted(self.labels[rows])

    def margin_gradient(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the gradient of the output margin at images of some rows."""
        return self.loss_and_gradient(margin_loss, self.counted, images, rows).gradient

    def loss_and_gradient(self, loss: Loss, model: CountedModel, images: Tensor, rows: Tensor) -> LossAndGradient:
        """Return a loss and its gradient at images of some rows."""
        values, gradients = torch.empty_like(images[:, 0, 0, 0]), torch.empty_like(images)
        for start, batch in batches(rows):
            place = slice(start, start + len(batch))
            inputs = model.select(batch), images[place], self.goal(batch)
            values[place], gradients[place], _ = value_and_gradient(loss, *inputs)
        return LossAndGradient(values, gradients)

    @torch.no_grad()
    def margins(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return the largest output of another class minus that of the label, (n,) in float64."""
        outputs = self._outputs(self.counted.select(rows), images).double()
        own = outputs.gather(1, self.labels[rows][:, None])
        others = outputs.scatter(1, self.labels[rows][:, None], -torch.inf)
        return others.amax(1) - own[:, 0]

    def is_fooled(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return which images of some rows are misclassified; images that are not finite never are."""
        finite = torch.isfinite(images).flatten(1).all(1)
        if len(rows) == 0:
            return finite
        return finite & self._misclassified(self.counted.select(rows), images, self.labels[rows])

    def run_attack(
        self, attack: Attack, rows: Tensor, *, model: CountedModel | None = None, repetition: int = 0
    ) -> Tensor:
        """Return the images that an attack finds for some rows; `model` replaces the shielded model."""
        attacked = model or self.counted
        adversarial = self.images[rows]
        for start, batch in batches(rows):
            place = slice(start, start + len(batch))
            draws = self.draws(batch, repetition=repetition)
            inputs = attacked.select(batch), self.images[batch], self.goal(batch), self.budget, draws
            adversarial[place] = images_of(attack.run(*inputs)).detach()
        return adversarial

    @torch.no_grad()
    def _outputs(self, model: CountedModel, images: Tensor) -> Tensor:
        rows = torch.arange(len(images), device=images.device)
        return torch.cat([model.select(batch)(images[batch]) for _, batch in batches(rows)])

    def _misclassified(self, model: CountedModel, images: Tensor, labels: Tensor) -> Tensor:
        passes = PREDICTION_PASSES if self.is_randomised else 1
        wrong = sum((predict(self._outputs(model, images)) != labels).long() for _ in range(passes))
        return torch.as_tensor(wrong * 2 > passes)


def batches(rows: Tensor, size: int = BATCH_SIZE) -> list[tuple[int, Tensor]]:
    """Return the rows in batches, each with the position of its first row."""
    return [(start, rows[start : start + size]) for start in range(0, len(rows), size)]
