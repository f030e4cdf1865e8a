"""Rows looked at from other sides: from which model images transfer, which class becomes which, how far is enough."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.markdown import markdown_table
from robustcaps.published import SIZES_SOURCE, published_size
from robustcaps.statistics import wilson

RUN = ["suite", "data", "model", "attack", "goal", "norm", "unit"]
MEANS = ["mean", "mean_low", "mean_high"]
RESAMPLES = 2000
"""How often samples are drawn again for a bootstrap."""


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
    """Return the median (and quartiles) and the mean of the smallest perturbations: one line per (model, attack).

    `found` is the share of samples that were fooled at all; a quartile beyond it is infinite, and the mean is that of
    the fooled alone: of the others nothing is known but that the attack failed. Its interval is bootstrapped (95 %).
    """
    sizes = smallest_sizes(rows)
    lines: list[dict[str, Any]] = []
    for names, part in sizes.groupby(RUN, sort=False):
        low, middle, high = (_quantile(part["size"], share) for share in (0.25, 0.5, 0.75))
        found = float(np.isfinite(part["size"]).mean())
        quartiles = {"quartile_low": low, "median": middle, "quartile_high": high}
        means = dict(zip(MEANS, mean_interval(part["size"][np.isfinite(part["size"])]), strict=True))
        lines.append({**dict(zip(RUN, names, strict=True)), "n": len(part), "found": found, **quartiles, **means})
    return pd.DataFrame(lines, columns=[*RUN, "n", "found", "quartile_low", "median", "quartile_high", *MEANS])


def _quantile(sizes: pd.Series, share: float) -> float:
    """Return the size below which a share of the samples lie; one of the sizes, so that none is made of infinities."""
    return float(np.quantile(sizes, share, method="inverted_cdf"))


def mean_interval(values: pd.Series) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval by the bootstrap (percentiles; Efron 1979); of no values, NaN."""
    if len(values) == 0:
        return np.nan, np.nan, np.nan
    numbers, draws = values.to_numpy(float), np.random.default_rng(0)
    means = [numbers[draws.integers(len(numbers), size=len(numbers))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(numbers.mean()), float(low), float(high)


def compare_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per pair of models: the means of the smallest perturbations that were found, and their difference.

    The smallest of a sample is that of any attack that both models have met: another would make one look weaker. Of the
    `of` samples that both models have, `n` were fooled with both and are compared one by one. difference is that of
    the first less that of the second, its interval bootstrapped.
    """
    sizes = smallest_sizes(rows[rows["goal"] == "untargeted"])
    lines: list[dict[str, Any]] = []
    for names, part in sizes.groupby(["suite", "data", "norm", "unit"], sort=False):
        by_attack = part.pivot_table(
            index=["attack", "index"], columns="model", values="size", aggfunc="min", sort=False
        )
        for first, second in itertools.combinations(by_attack.columns, 2):
            both = by_attack[[first, second]].dropna().groupby(level="index", sort=False).min()
            fooled = both[np.isfinite(both).all(axis=1)]
            if fooled.empty:
                continue
            told = dict(zip(("suite", "data", "norm", "unit"), names, strict=True))
            means = {"mean_first": fooled[first].mean(), "mean_second": fooled[second].mean()}
            difference = dict(
                zip(("difference", "low", "high"), mean_interval(fooled[first] - fooled[second]), strict=True)
            )
            lines.append(
                {**told, "first": first, "second": second, "n": len(fooled), "of": len(both), **means, **difference}
            )
    return pd.DataFrame(lines)


def size_sentences(comparisons: pd.DataFrame) -> list[str]:
    """Say in words who needs the larger perturbations, or that nobody surely does."""
    told = []
    for line in comparisons.to_dict("records"):
        order = ("first", "second") if line["difference"] >= 0 else ("second", "first")
        larger, smaller = (line[name] for name in order)
        low, high = (line["low"], line["high"]) if order[0] == "first" else (-line["high"], -line["low"])
        verdict = "needs larger perturbations than" if low > 0 else "does not surely need larger perturbations than"
        means = " vs ".join(f"{line[f'mean_{name}']:.3g}" for name in order)
        interval = f"difference {abs(line['difference']):.2g} (95 %: {low:.2g} to {high:.2g})"
        where = f"on {line['data']} ({line['norm']}, the smallest that any attack on both found)"
        told.append(f"{larger} {verdict} {smaller} {where}: mean {means}, {interval}, n = {line['n']} of {line['of']}")
    return told


def sizes_markdown(table: pd.DataFrame, names: Mapping[str, str], sentences: list[str]) -> str:
    """Return a table of distances as Markdown, beside the published means; `names` are what the zoo calls models."""
    head = ["data", "attack", "model", "norm", "n", "fooled %", "mean (95 %)", "published"]
    lines = []
    for line in table[table["goal"] == "untargeted"].to_dict("records"):
        published = published_size(names.get(line["model"], ""), line["data"], line["attack"])
        beside = "" if published is None or line["norm"] != "l2" else f"{published:.2f}"
        words = [str(line[name]) for name in ("data", "attack", "model", "norm", "n")]
        lines.append([*words, f"{100 * line['found']:.1f}", _mean_in_words(line), beside])
    note = "A sample that is misclassified without any perturbation counts as 0. *: of the fooled samples alone."
    told = [f"{note} Published: {SIZES_SOURCE}.", *(f"{each}." for each in sentences)]
    return markdown_table(head, lines) + "".join(f"\n{each}\n" for each in told)


def _mean_in_words(line: Mapping[Any, Any]) -> str:
    mean, low, high = (line[name] for name in MEANS)
    star = "" if line["found"] == 1 else "*"
    return "" if np.isnan(mean) else f"{mean:.3g}{star} ({low:.3g}-{high:.3g})"
