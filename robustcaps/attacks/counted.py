"""The model as attacks see it: any module from images to logits, with its passes counted per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import CapsuleClassifier, Classifier, Reading


@dataclass(frozen=True, eq=False)
class Counts:
    """Forward and backward passes of each sample of a batch, (n,) each."""

    forwards: Tensor
    backwards: Tensor

    @classmethod
    def zeros(cls, n: int) -> Counts:
        """Return fresh counters."""
        return cls(torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))


class CountedModel(nn.Module):
    """Wraps a model and books every pass on the batch's samples; `select` narrows it to some of them."""

    def __init__(self, model: nn.Module, counts: Counts, rows: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.counts = counts
        self.rows = torch.arange(len(counts.forwards)) if rows is None else rows

    def select(self, rows: Tensor) -> CountedModel:
        """Return the same model for some of the samples; passes are booked on those."""
        return CountedModel(self.model, self.counts, self.rows[rows.cpu()])

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the images and book the pass."""
        return _checked_logits(self.model(self._book(images)), images)

    def read(self, images: Tensor) -> Reading:
        """Return logits and scores from one pass; only zoo models know their scores."""
        return self._zoo("scores").read(self._book(images))

    def scores(self, images: Tensor) -> Tensor:
        """Return the paper's class scores and book the pass."""
        return self.read(images).scores

    def votes(self, images: Tensor) -> Tensor:
        """Return the votes for the class capsules and book the pass; only capsule networks have them."""
        if not isinstance(self.model, CapsuleClassifier):
            raise UserError(f"model {type(self.model).__name__} has no votes: it is no capsule network.")
        return self.model.votes(self._book(images))

    def training_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss (n,) that the model was trained on, with its schedules at their end."""
        return self._zoo("training loss").training_loss(self._book(images), labels)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def _zoo(self, what: str) -> Classifier:
        if not isinstance(self.model, Classifier):
            raise UserError(
                f"model {type(self.model).__name__} has no {what}: attack its logits instead (loss = 'ce')."
            )
        return self.model

    def _book(self, images: Tensor) -> Tensor:
        """Book one forward pass now, and one backward pass whenever gradients come back to the images."""
        share = len(images) / max(len(self.rows), 1)
        self.counts.forwards[self.rows] += share
        if not images.requires_grad:
            return images

        def backward(_: Tensor) -> None:
            self.counts.backwards[self.rows] += share

        tapped = images.view_as(images)
        tapped.register_hook(backward)  # type: ignore[no-untyped-call]
        return tapped


def _checked_logits(logits: Tensor, images: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model must return logits ({len(images)}, classes) for {len(images)} images, not {shape}.")
    return logits
