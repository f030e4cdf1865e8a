"""Rows looked at from other sides: from which model images transfer, which class becomes which, how far is enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from robustcaps.statistics import wilson

RUN = ["suite", "data", "model", "attack", "goal", "norm", "unit"]


def transfer_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often images crafted on a surrogate fool a model: one line per (surrogate, model, attack, eps)."""
    return _rates(rows[rows["surrogate"] != ""], [*RUN, "surrogate", "eps"])


def target_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how often targeted attacks turn a class into another: one line per (model, attack, eps, label, target)."""
    return _rates(rows[rows["goal"] == "targeted"], [*RUN, "eps", "label", "target"])


def _rates(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the success of each group with its interval; a sample's rows (seeds) count once."""
    table = rows.groupby(keys, sort=False).agg(n=("index", "nunique"), success=("fooled", "mean")).reset_index()
    table["success_low"], table["success_high"] = wilson(table["success"] * table["n"], table["n"])
    return table


def smallest_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the size of the smallest perturbation that fooled each sample: 0 without any, infinite where none did.

    Only of attacks that look for small ones: with a fixed eps, sizes say more about the eps than about the model.
    """
    attacked = rows[(rows["eps"] > 0) & rows["closest"] & (rows["target"] != rows["label"])]
    size = attacked["linf"].where(attacked["norm"] == "linf", attacked["l2"])
    sizes = attacked.assign(size=np.where(attacked["fooled"], size, np.inf))
    return sizes.groupby([*RUN, "index"], sort=False)["size"].min().reset_index()


def distances(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the median (and quartiles) of the smallest perturbations: one line per (model, attack).

    `found` is the share of samples that were fooled at all; a quartile beyond it is infinite.
    """
    sizes = smallest_sizes(rows)
    lines: list[dict[str, Any]] = []
    for names, part in sizes.groupby(RUN, sort=False):
        low, middle, high = (_quantile(part["size"], share) for share in (0.25, 0.5, 0.75))
        found = float(np.isfinite(part["size"]).mean())
        quartiles = {"quartile_low": low, "median": middle, "quartile_high": high}
        lines.append({**dict(zip(RUN, names, strict=True)), "n": len(part), "found": found, **quartiles})
    return pd.DataFrame(lines, columns=[*RUN, "n", "found", "quartile_low", "median", "quartile_high"])


def _quantile(sizes: pd.Series, share: float) -> float:
    """Return the size below which a share of the samples lie; one of the sizes, so that none is made of infinities."""
    return float(np.quantile(sizes, share, method="inverted_cdf"))
