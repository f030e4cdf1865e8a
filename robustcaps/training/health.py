"""Detect collapsed networks, which predict few classes and rarely recover."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from robustcaps.training.checkpoint import LogRow

MAX_CLASSES_IN_MESSAGE = 5


def count_classes(labels: Tensor, classes: int) -> list[int]:
    """Return the number of occurrences of each class in labels (n,) or (n, objects)."""
    counts: list[int] = torch.bincount(labels.flatten(), minlength=classes).tolist()
    return counts


def effective_number(counts: Sequence[int]) -> float:
    """Return exp(entropy): k if k classes are equally frequent, less if some are rare."""
    total = sum(counts)
    return math.exp(-sum(count / total * math.log(count / total) for count in counts if count))


def prediction_metrics(predictions: Tensor, classes: int) -> LogRow:
    """Return the effective number of predicted classes and the count of each, for the log."""
    counts = count_classes(predictions, classes)
    return {"predicted_classes": effective_number(counts), "predictions": " ".join(map(str, counts))}


def has_collapsed(row: LogRow, label_counts: Sequence[int]) -> bool:
    """Return whether an epoch ended with few predicted classes and an accuracy close to that of a constant prediction.

    Few: the effective number of predicted classes is closer to 1 than to that of the labels. Close: accuracy below 1.5
    times the frequency of the most frequent class.
    """
    few = float(row["predicted_classes"] or 0) < (1 + effective_number(label_counts)) / 2
    return few and float(row["train_accuracy"] or 0) < 1.5 * max(label_counts) / sum(label_counts)


def describe_predictions(row: LogRow, class_names: Sequence[str]) -> str:
    """Return the prediction counts of an epoch as text: 'car 430, truck 70'."""
    counts = [int(count) for count in str(row["predictions"]).split()]
    ranked = sorted(zip(counts, class_names, strict=True), key=lambda pair: -pair[0])
    parts = [f"{name} {count}" for count, name in ranked[:MAX_CLASSES_IN_MESSAGE] if count]
    rest = sum(count for count, _ in ranked[MAX_CLASSES_IN_MESSAGE:])
    return ", ".join([*parts, f"others {rest}"] if rest else parts)
