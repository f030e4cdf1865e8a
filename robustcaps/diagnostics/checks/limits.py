"""Shares of samples from which a difference between attacks counts, and how a share is judged."""

from __future__ import annotations

from robustcaps.utils.statistics import wilson

SIGN_SHARE = 0.02
"""Two runs of one attack on a sound model differ by 1 or 2 % of the samples: a larger share is a sign of masking."""
PROOF_SHARE = 0.05
"""The largest share of samples on which standard PGD fails but far stronger ensembles succeed, for sound adversarially
trained models (Croce and Hein 2020, table 2: mostly 1 to 4 points): a larger share proves that gradients mislead."""


def lower_bound(count: int, n: int) -> float:
    """Return the lower end of the 95 % Wilson interval of count/n."""
    return float(wilson(count, n)[0])
