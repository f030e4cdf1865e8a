"""Randomised smoothing: radii in l2 within which a smoothed classifier's prediction provably holds (Cohen et al. 2019).

The smoothed classifier predicts the class that the model most probably predicts under Gaussian noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import ndtri
from torch import Tensor, nn

from robustcaps.data.base import Data, Progress, as_data
from robustcaps.models.inference import NO_ANSWER, device_of, inference, predict
from robustcaps.options import MAX_COUNT
from robustcaps.utils.sample_random import Draws
from robustcaps.utils.statistics import clopper_pearson_lower

MAX_SAMPLES = 2**32
"""Copies of a sample are numbered above this, so that each has random numbers of its own."""

Sigma = Annotated[float, Field(gt=0, le=10, description="standard deviation of the noise, in pixel values of [0,1]")]
Copies = Annotated[int, Field(ge=1, le=MAX_COUNT, description="noisy copies of each sample that estimate the bound")]
FirstCopies = Annotated[int, Field(ge=1, le=MAX_COUNT, description="noisy copies before, that select the class")]
Alpha = Annotated[float, Field(gt=0, lt=1, description="probability that a sample's bound is wrong")]
Batch = Annotated[int, Field(ge=1, le=MAX_COUNT, description="noisy copies per forward pass; rows do not depend on it")]


def certify(
    model: nn.Module,
    data: Data | tuple[Tensor, Tensor],
    *,
    sigma: Sigma = 0.25,
    n0: FirstCopies = 100,
    n: Copies = 1000,
    alpha: Alpha = 0.001,
    batch: Batch = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Certify the smoothed version of a model on each sample (Cohen et al. 2019, CERTIFY).

    Args:
        model: Any module from images to logits, the base classifier.
        data: A dataset, or a pair of tensors (images, labels).
        sigma: Standard deviation of the Gaussian noise, which is not clipped to [0,1].
        n0: Noisy copies of each sample that select the class.
        n: Further copies, which estimate the probability of that class.
        alpha: Probability that the bound of a sample is wrong.
        batch: Noisy copies per forward pass.
        seed: Seed of the noise.
        progress: Called with the number of finished copies and of all copies.

    Returns:
        One row per sample. prediction: the class, -1 if the smoothed classifier abstains; p_lower: the Clopper-Pearson
        lower bound of the probability of the selected class; radius: sigma Phi^-1(p_lower), 0 if it abstains;
        max_radius: what n equal predictions certify; correct: whether the prediction is the label.
    """
    data = as_data(data)
    noisy = NoisyPredictions(model, data, sigma, batch, seed)
    tick = partial(_report, progress, len(data) * (n0 + n)) if progress else None
    selected = noisy.count(range(n0), tick).argmax(1)
    counts = noisy.count(range(n0, n0 + n), tick)
    p_lower = clopper_pearson_lower(counts[np.arange(len(data)), selected], n, alpha)
    certified = (p_lower > 0.5) & (selected < counts.shape[1] - 1)
    prediction = np.where(certified, selected, NO_ANSWER)
    labels = data.labels.cpu().numpy()
    return pd.DataFrame(
        {
            "index": np.arange(len(data)),
            "label": labels,
            "prediction": prediction,
            "p_lower": p_lower,
            "radius": np.where(certified, sigma * ndtri(p_lower), 0.0),
            "max_radius": max(0.0, sigma * ndtri(clopper_pearson_lower(n, n, alpha))),
            "correct": prediction == labels,
            "sigma": sigma,
            "n": n,
            "alpha": alpha,
        }
    )


def _report(progress: Progress, total: int, done: int) -> None:
    """Report finished copies."""
    progress(done, total)


@dataclass(frozen=True, eq=False)
class NoisyPredictions:
    """Predictions of a model on noisy copies of samples; the noise belongs to a sample and the number of its copy."""

    model: nn.Module
    data: Data
    sigma: float
    batch: int
    seed: int

    def count(self, copies: range, tick: Callable[[int], None] | None = None) -> NDArray[np.int64]:
        """Return how often each class is predicted (n, classes + 1); last, how often logits are not finite."""
        samples = len(self.data)
        with inference(self.model, self.data.images[:1]) as first:
            classes = self.model(first).shape[1]
            counts = torch.zeros(samples, classes + 1, dtype=torch.long)
            for pairs in torch.split(torch.arange(samples * len(copies)), self.batch):
                rows, numbers = pairs % samples, copies.start + pairs // samples
                predictions = predict(self.model(self._add_noise(rows, numbers))).cpu()
                counts.index_put_((rows, predictions), torch.ones_like(rows), accumulate=True)  # -1 is the last column
                if tick:
                    tick(samples * copies.start + int(pairs[-1]) + 1)
        found: NDArray[np.int64] = counts.numpy()
        return found

    def _add_noise(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Return the numbered noisy copies of some samples."""
        device = device_of(self.model)
        images = self.data.images[rows].to(device)
        draws = Draws(self.seed, (rows + numbers * MAX_SAMPLES).to(device))
        return images + self.sigma * draws.normal(tuple(images.shape[1:]))
