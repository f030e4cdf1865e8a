"""Confidence intervals and significance tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betainc, betaincinv, ndtr, ndtri, stdtr, stdtrit

RESAMPLES = 2000
RESAMPLES_PER_BATCH = 100
"""Limits the memory of a bootstrap."""


def wilson(
    successes: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Wilson score interval (low, high) of a proportion k/n; (0, 1) if n = 0.

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with p = k/n and z the normal quantile (Wilson 1927).
    """
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64))
    if not bool(np.all((k >= 0) & (k <= n) & np.isfinite(n))):
        raise ValueError("successes must be in 0..n.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, not {confidence}.")
    z2 = ndtri(0.5 + confidence / 2) ** 2
    p = k / np.maximum(n, 1)
    centre = (k + z2 / 2) / (n + z2)
    half = np.sqrt(z2 * (k * (1 - p) + z2 / 4)) / (n + z2)
    return np.clip(centre - half, 0, p), np.clip(centre + half, p, 1)  # contains p despite rounding


def clopper_pearson_lower(successes: ArrayLike, n: ArrayLike, alpha: float) -> NDArray[np.float64]:
    """Return the exact one-sided lower bound of a proportion k/n, which holds with probability 1 - alpha; 0 if k = 0.

    The alpha quantile of Beta(k, n - k + 1) (Clopper and Pearson 1934).
    """
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64))
    if not bool(np.all((k >= 0) & (k <= n) & np.isfinite(n))):
        raise ValueError("successes must be in 0..n.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}.")
    bound: NDArray[np.float64] = betaincinv(np.maximum(k, 1.0), n - k + 1, alpha)
    return np.where(k > 0, bound, 0.0)


def probability_above(share: float, successes: float, n: float) -> float:
    """Return the probability that a proportion exceeds a share after k of n: the Beta posterior of Jeffreys' prior."""
    if not 0 <= successes <= n:
        raise ValueError("successes must be in 0..n.")
    return float(1.0 - betainc(successes + 0.5, n - successes + 0.5, share))


def mean_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the mean and its bootstrap percentile interval (mean, low, high); NaN if there are no values."""
    from scipy.stats import bootstrap  # noqa: PLC0415  takes half a second to import

    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        return np.nan, np.nan, np.nan
    mean = float(sample.mean())
    if len(sample) == 1:
        return mean, mean, mean
    interval = bootstrap(
        (sample,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=RESAMPLES_PER_BATCH,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return mean, float(interval.low), float(interval.high)


def bootstrap_means(values: ArrayLike) -> NDArray[np.float64]:
    """Return the means of values (models, samples) over samples drawn with replacement, (resamples, models).

    Every resample draws the same samples for all models, so that differences between them are paired.
    """
    table = np.asarray(values, dtype=np.float64)
    n, rng = table.shape[1], np.random.default_rng(0)
    draws = (np.bincount(rng.integers(n, size=n), minlength=n) for _ in range(RESAMPLES))
    means: NDArray[np.float64] = np.stack([table @ counts for counts in draws]) / n
    return means


def percentile_interval(resampled: NDArray[np.float64], confidence: float = 0.95) -> NDArray[np.float64]:
    """Return the bootstrap percentile interval (low, high) of each column of resampled values, (2, columns)."""
    bounds: NDArray[np.float64] = np.quantile(resampled, [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0)
    return bounds


@dataclass(frozen=True)
class CrossedEstimate:
    """A mean over models and samples, where every model saw every sample, and its uncertainty."""

    mean: float
    variance_of_models: float
    """Of the mean, because the models could have been trained with other seeds; 0 if there is a single model."""
    sample_means: NDArray[np.float64]
    """(n,): means over the models."""
    models: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval."""
        variance, freedom = _total_variance(self.sample_means, [(self.variance_of_models, self.models - 1)])
        half = _t_quantile(freedom) * variance**0.5
        return self.mean - half, self.mean + half


def crossed_mean(values: ArrayLike) -> CrossedEstimate:
    """Return the mean of values (models, samples) as that of a crossed design with two random effects.

    var(mean) = var(means of models) / models + var(means of samples) / n counts their interaction twice, which is
    conservative; degrees of freedom by Satterthwaite (1946).
    """
    table = np.asarray(values, dtype=np.float64)
    of_models = table.mean(axis=1)
    variance = float(of_models.var(ddof=1)) / len(of_models) if len(of_models) > 1 else 0.0
    return CrossedEstimate(float(table.mean()), variance, table.mean(axis=0), len(of_models))


def crossed_difference(first: CrossedEstimate, second: CrossedEstimate) -> tuple[float, float, float, float]:
    """Return the difference of two means on the same samples, its 95 % interval, and p of the null hypothesis 0."""
    by_model = [(each.variance_of_models, each.models - 1) for each in (first, second)]
    variance, freedom = _total_variance(first.sample_means - second.sample_means, by_model)
    difference = first.mean - second.mean
    half = _t_quantile(freedom) * variance**0.5
    p = 2 * float(stdtr(freedom, -abs(difference) / variance**0.5)) if variance > 0 else float(difference == 0)
    return difference, difference - half, difference + half, p


def _total_variance(of_samples: NDArray[np.float64], of_models: list[tuple[float, int]]) -> tuple[float, float]:
    """Return the variance of a mean and its degrees of freedom (Satterthwaite) from (variance, degrees) by source."""
    n = len(of_samples)
    sampling = float(of_samples.var(ddof=1)) / n if n > 1 else 0.0
    parts = [(variance, freedom) for variance, freedom in [*of_models, (sampling, n - 1)] if variance > 0]
    total = sum(variance for variance, _ in parts)
    return total, total**2 / sum(variance**2 / freedom for variance, freedom in parts) if parts else 1.0


def _t_quantile(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t distribution."""
    return float(stdtrit(freedom, 0.975))


def interval_difference(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> tuple[float, float, float, float]:
    """Return first minus second of independent estimates (value, low, high), its 95 % interval, and p of no difference.

    Of Wilson intervals it is Newcombe's score interval (1998), in general the method of variance estimates recovery
    (Zou and Donner 2008); p is that of the normal variable whose interval ends at the same bound.
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second
    difference = a - b
    below, above = np.hypot(a - a_low, b_high - b), np.hypot(a_high - a, b - b_low)
    towards_zero = below if difference > 0 else above
    z = float(ndtri(0.975)) * abs(difference) / towards_zero if towards_zero > 0 else np.inf
    p = 2 * float(ndtr(-z)) if difference else 1.0
    return difference, difference - float(below), difference + float(above), p


def mcnemar(only_first: ArrayLike, only_second: ArrayLike) -> NDArray[np.float64]:
    """Return the two-sided p of McNemar's exact test, given how many samples only one model classifies correctly.

    Under the null hypothesis both are equally likely, so the smaller count is binomial(b + c, 1/2) (McNemar 1947).
    """
    b, c = np.broadcast_arrays(np.asarray(only_first, dtype=np.int64), np.asarray(only_second, dtype=np.int64))
    if bool(np.any((b < 0) | (c < 0))):
        raise ValueError("counts must not be negative.")
    doubled: NDArray[np.float64] = 2.0 * bdtr(np.minimum(b, c).astype(np.float64), b + c, 0.5)
    return np.minimum(1.0, doubled)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Return p-values corrected for multiple comparisons, which controls the family-wise error rate (Holm 1979)."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    adjusted = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    corrected = np.empty_like(values)
    corrected[order] = adjusted
    return corrected
