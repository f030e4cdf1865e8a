"""Example images: what an attack did to a few samples of a dataset, kept in additional columns of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustcaps.attacks.evaluation import AttackedBatch
from robustcaps.attacks.example_columns import EXAMPLE_COLUMNS, encode_image
from robustcaps.data.base import Data

MAX_SAMPLES = 6
MAX_VALUES = 2**16
"""Fewer samples are kept of larger images: together they have at most so many values, or there is only one."""
NOT_SHOWN = (None, None, math.nan, math.nan, None)
"""The values of `EXAMPLE_COLUMNS` for all other rows."""


def choose_samples(data: Data) -> list[int]:
    """Return the indices of the samples that are shown: evenly spaced, the same for every model and attack.

    The step and the number of classes are coprime, because the labels of some datasets repeat in a cycle.
    """
    count = max(1, min(MAX_SAMPLES, MAX_VALUES // data.images[0].numel()))
    step = max(1, len(data) // count)
    while math.gcd(step, data.classes) > 1:
        step -= 1
    return list(range(0, len(data), step))[:count]


class ExampleImages:
    """Computes the columns of example images for `evaluate`; they are empty for all but the chosen samples.

    Of several target classes, each sample is shown with one, a different one for each.
    """

    def __init__(self, model: nn.Module, data: Data, *, several_targets: bool) -> None:
        self.model = model
        self.classes = data.classes
        self.several_targets = several_targets
        self.places = {index: place for place, index in enumerate(choose_samples(data))}

    def __call__(self, batch: AttackedBatch) -> dict[str, Any]:
        """Return the columns of a batch."""
        shown = {row: self._show(batch, row) for row in self._shown_rows(batch.columns)}
        lines = [shown.get(row, NOT_SHOWN) for row in range(len(batch.images))]
        columns = zip(EXAMPLE_COLUMNS, zip(*lines, strict=True), strict=True)
        return {name: np.array(values, dtype=float if "confidence" in name else object) for name, values in columns}

    def _show(self, batch: AttackedBatch, row: int) -> tuple[Any, ...]:
        """Return the values of `EXAMPLE_COLUMNS` for one row."""
        pair = torch.stack([batch.images[row], batch.adversarial[row]])
        predictions = int(batch.columns["clean_pred"][row]), int(batch.columns["adv_pred"][row])
        shape = "x".join(map(str, pair.shape[1:]))
        return (*map(encode_image, pair.cpu().numpy()), *self._confidences(pair, predictions), shape)

    def _shown_rows(self, columns: Mapping[str, Any]) -> Iterator[int]:
        """Yield the rows of the chosen samples, each with the target that is shown of it."""
        for row in np.flatnonzero(np.isin(columns["index"], list(self.places))).tolist():
            if self.several_targets:
                place, label = self.places[int(columns["index"][row])], int(columns["label"][row])
                if int(columns["target"][row]) != (label + 1 + place % (self.classes - 1)) % self.classes:
                    continue
            yield row

    def _confidences(self, pair: Tensor, predictions: tuple[int, int]) -> list[float]:
        """Return the softmax probability of the class predicted for each image, NaN where there is no answer.

        The two pass alone, so that rounding does not depend on the batch, and leave no trace in the random state.
        """
        with torch.no_grad(), torch.random.fork_rng():
            probabilities = self.model(pair).double().softmax(1).cpu()
        return [
            math.nan if predicted < 0 else float(line[predicted])
            for line, predicted in zip(probabilities, predictions, strict=True)
        ]
