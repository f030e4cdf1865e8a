"""How sure a measured share is."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri


def wilson(
    successes: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Wilson score interval (low, high) of a share k/n; n = 0 tells nothing: (0, 1).

    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with p = k/n and z the normal quantile (Wilson 1927).
    """
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64))
    if not bool(np.all((k >= 0) & (k <= n) & np.isfinite(n))):
        raise ValueError("successes must lie in 0..n.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}.")
    z2 = ndtri(0.5 + confidence / 2) ** 2
    p = k / np.maximum(n, 1)
    centre = (k + z2 / 2) / (n + z2)
    half = np.sqrt(z2 * (k * (1 - p) + z2 / 4)) / (n + z2)
    return np.clip(centre - half, 0, p), np.clip(centre + half, p, 1)  # rounding must not push p out
