"""Base classes of the zoo's models: raw images in, unsaturated logits out, plus class scores and a training loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from robustcaps.capsules.interventions import Intervention


@dataclass(frozen=True)
class ClassifierOutput:
    """Everything that one forward pass of a zoo model computes about its images."""

    logits: Tensor
    """(n, classes), unsaturated: used by attacks and predictions."""
    scores: Tensor
    """(n, classes) in [0,1]: probabilities, capsule lengths or activations, as the paper defines them."""
    poses: Tensor | None = None
    """(n, classes, pose): the class capsules, if the model has any."""


@dataclass(frozen=True)
class TrainingRecipe:
    """Default hyperparameters of a model's training: Adam, linear warm-up, then cosine decay to `final_lr`."""

    epochs: int
    batch_size: int
    lr: float
    warmup_steps: int = 200
    final_lr: float = 0.02
    """Final learning rate, as a fraction of `lr`."""
    clip: float | None = None
    """Maximum gradient norm; None disables clipping."""
    weight_decay: float = 0.0


class Classifier(nn.Module, ABC):
    """Base class of zoo models; subclasses implement `classify` and `training_loss`."""

    recipe: ClassVar[TrainingRecipe]
    supports_multi_label: ClassVar[bool] = False
    """Whether `training_loss` also accepts labels (n, objects) of images that show several objects."""

    def __init__(self, *, classes: int, channels: int, size: int) -> None:
        super().__init__()
        self.classes = classes
        self.channels = channels
        self.size = size

    @abstractmethod
    def classify(self, images: Tensor) -> ClassifierOutput:
        """Return logits, scores and class poses of raw images in [0,1] from one forward pass."""

    def health_metrics(self, images: Tensor) -> dict[str, float]:  # noqa: ARG002
        """Return metrics to log after every epoch, computed on images in eval mode; none by default."""
        return {}

    @abstractmethod
    def training_loss(self, images: Tensor, labels: Tensor, progress: float = 1.0) -> Tensor:
        """Return the loss of each sample (n,); `progress` in [0,1] drives schedules such as the spread margin."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of raw images in [0,1]."""
        return self.classify(images).logits

    def scores(self, images: Tensor) -> Tensor:
        """Return the paper's class scores (n, classes) in [0,1]."""
        return self.classify(images).scores


class CapsuleClassifier(Classifier):
    """A classifier whose class capsules are routed, and whose votes can be inspected."""

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """The interventions in its routing that `intervened_logits` knows."""
        return ()

    def intervened_logits(self, images: Tensor, intervention: Intervention) -> Tensor:
        """Return the logits (n, classes) with changed routing."""
        raise NotImplementedError

    def routing_statistics(self, images: Tensor) -> dict[str, dict[str, Tensor]]:  # noqa: ARG002
        """Return statistics of routing (n,) and the activations (n, capsule types) by layer, the class layer last.

        "entropy" is the normalised entropy of the assignments: 1 is uniform. Networks with sigma have "sigma_ratio",
        the mean sigma over the square root of the variance floor; "activations" are maxima over positions.
        """
        return {}

    @abstractmethod
    def votes(self, images: Tensor) -> Tensor:
        """Return every child capsule's prediction of every class capsule (n, classes, children, pose)."""

    @abstractmethod
    def vote_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class logits of uniformly weighted votes, and the routed ones without gradient, from one pass.

        (n, classes) each: gradients of the first bypass the routing of the class capsules (Gu et al. 2021).
        """
