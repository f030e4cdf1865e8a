"""Whether a network still tells its classes apart: capsules may collapse onto a few of them and never come back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from robustcaps.training.checkpoint import Row, number

MOST_NAMED = 5
"""So many classes a message names, the most often predicted ones."""


def count_classes(labels: Tensor, classes: int) -> list[int]:
    """Return how often each class occurs in labels (n,) or (n, objects)."""
    counts: list[int] = torch.bincount(labels.flatten(), minlength=classes).tolist()
    return counts


def effective_number(counts: Sequence[int]) -> float:
    """Return exp(entropy): k where k classes are equally frequent, less where some are rare."""
    total = sum(counts)
    return math.exp(-sum(count / total * math.log(count / total) for count in counts if count))


def describe_guesses(guesses: Tensor, classes: int) -> Row:
    """Return what the log says about predictions: their effective number of classes and how often each occurs."""
    counts = count_classes(guesses, classes)
    return {"predicted_classes": effective_number(counts), "predictions": " ".join(map(str, counts))}


def has_collapsed(row: Row, labels: Sequence[int]) -> bool:
    """Tell whether an epoch ended with guesses on few classes, and hardly better ones than always the same.

    Few: the effective number of predicted classes is nearer to 1 than to that of the labels. Hardly better: accuracy
    below 1.5 times the share of the most frequent class. `labels` counts each class of the samples in question.
    """
    predicted, accuracy = number(row, "predicted_classes"), number(row, "train_accuracy")
    if predicted is None or accuracy is None:  # a row of a training begun before this was logged
        return False
    few = predicted < (1 + effective_number(labels)) / 2
    return few and accuracy < 1.5 * max(labels) / sum(labels)


def name_predictions(row: Row, class_names: Sequence[str]) -> str:
    """Return the predictions of an epoch in words: 'car 430, truck 70'."""
    counts = [int(count) for count in str(row["predictions"]).split()]
    ranked = sorted(zip(counts, class_names, strict=True), key=lambda pair: -pair[0])
    words = [f"{name} {count}" for count, name in ranked[:MOST_NAMED] if count]
    rest = sum(count for count, _ in ranked[MOST_NAMED:])
    return ", ".join([*words, f"others {rest}"] if rest else words)
