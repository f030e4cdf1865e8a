"""The smallest perturbations that fool: how large they are, and which model needs the larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.analysis.published import SIZES_SOURCE, published_size
from robustcaps.analysis.tables.summary import RUN
from robustcaps.utils.markdown import markdown_table

MEANS = ["mean", "mean_low", "mean_high"]
SPACE = ["suite", "data", "norm", "unit"]
ANY_ATTACK = "any of these"
"""What the smallest perturbation that any attack on both models found is called."""
RESAMPLES = 2000
"""How often samples are drawn again for a bootstrap."""
BLOCK = 100
"""How often at once."""
LEAST = 10
"""Of fewer samples a bootstrap is too sure."""


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
    blocks = [draws.integers(len(numbers), size=(BLOCK, len(numbers))) for _ in range(RESAMPLES // BLOCK)]
    low, high = np.quantile([numbers[block].mean(axis=1) for block in blocks], (0.025, 0.975))
    return float(numbers.mean()), float(low), float(high)


def compare_sizes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return who needs the larger perturbations: a line per pair of models and attack, then one of `ANY_ATTACK`.

    That one takes the smallest that any attack on both models found: another attack would make one look weaker. Of the
    `of` samples that both models have, `n` were fooled with both and are compared one by one; found_first and
    found_second are the shares fooled with each. difference is the first's mean less the second's, its interval
    bootstrapped. Pairs without a sample that was fooled with both have no line.
    """
    sizes = smallest_sizes(rows[rows["goal"] == "untargeted"])
    lines: list[dict[str, Any]] = []
    for names, part in sizes.groupby(SPACE, sort=False):
        told = dict(zip(SPACE, names, strict=True))
        by_attack = part.pivot_table(
            index=["attack", "index"], columns="model", values="size", aggfunc="min", sort=False
        )
        for pair in itertools.combinations(by_attack.columns, 2):
            lines += [{**told, **line} for line in _duels(by_attack[list(pair)].dropna())]
    return pd.DataFrame(lines)


def _duels(sizes: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield what two models' sizes, by attack and sample, say of each attack and of the smallest of all."""
    for attack, part in (*sizes.groupby(level="attack", sort=False), (ANY_ATTACK, sizes)):
        both = part.groupby(level="index", sort=False).min()
        fooled = both[np.isfinite(both).all(axis=1)]
        if fooled.empty:
            continue
        line: dict[str, Any] = {"attack": attack, "n": len(fooled), "of": len(both)}
        for side, model in zip(("first", "second"), both.columns, strict=True):
            found = float(np.isfinite(both[model]).mean())
            line |= {side: model, f"found_{side}": found, f"mean_{side}": fooled[model].mean()}
        difference = mean_interval(fooled[line["first"]] - fooled[line["second"]])
        yield line | dict(zip(("difference", "low", "high"), difference, strict=True))


def surely_larger(line: Mapping[Any, Any]) -> int:
    """Return 1 if the first model of a comparison surely needs larger perturbations, -1 if the second, 0 if unsure.

    What was not found would add to a mean, so the model that needs the smaller ones must not be fooled on fewer
    samples; and few samples make no sure interval.
    """
    sign = int(line["low"] > 0) - int(line["high"] < 0)
    missed_of_smaller = sign * (line["found_first"] - line["found_second"]) > 0
    return 0 if missed_of_smaller or line["n"] < LEAST else sign


def size_sentences(comparisons: pd.DataFrame) -> list[str]:
    """Say in words who needs the larger perturbations by the smallest of all attacks, or that nobody surely does."""
    told = []
    for line in comparisons.to_dict("records"):
        if line["attack"] != ANY_ATTACK:
            continue
        order = ("first", "second") if line["difference"] >= 0 else ("second", "first")
        larger, smaller = (line[name] for name in order)
        low, high = (line["low"], line["high"]) if order[0] == "first" else (-line["high"], -line["low"])
        sure = surely_larger(line) != 0
        verdict = "needs larger perturbations than" if sure else "does not surely need larger perturbations than"
        means = " vs ".join(f"{line[f'mean_{name}']:.3g}" for name in order)
        interval = f"difference {abs(line['difference']):.2g} (95 %: {low:.2g} to {high:.2g})"
        where = f"on {line['data']} ({line['norm']}, the smallest that any attack on both found)"
        told.append(f"{larger} {verdict} {smaller} {where}: mean {means}, {interval}, n = {line['n']} of {line['of']}")
    return told


def distances_markdown(table: pd.DataFrame, names: Mapping[str, str]) -> str:
    """Return a table of distances as Markdown, beside the published means; `names` are what the zoo calls models."""
    head = ["data", "attack", "model", "goal", "norm", "n", "fooled %", "mean (95 %)", "median", "published mean"]
    lines = []
    for line in table.to_dict("records"):
        published = published_size(names.get(line["model"], ""), line["data"], line["attack"])
        alike = line["norm"] == "l2" and line["goal"] == "untargeted"
        beside = "" if published is None or not alike else f"{published:.2f}"
        words = [str(line[name]) for name in ("data", "attack", "model", "goal", "norm", "n")]
        lines.append([*words, f"{100 * line['found']:.1f}", _mean_in_words(line), f"{line['median']:.3g}", beside])
    note = "A sample that is misclassified without any perturbation counts as 0. *: of the fooled samples alone."
    return f"{markdown_table(head, lines)}\n{note} Published: {SIZES_SOURCE}.\n"


def _mean_in_words(line: Mapping[Any, Any]) -> str:
    mean, low, high = (line[name] for name in MEANS)
    star = "" if line["found"] == 1 else "*"
    return "" if np.isnan(mean) else f"{mean:.3g}{star} ({low:.3g}-{high:.3g})"


def sizes_markdown(table: pd.DataFrame) -> str:
    """Return who needs the larger perturbations as a Markdown table."""
    head = ["data", "attack", "norm", "first", "second", "fooled %", "means", "difference (95 %)", "n"]
    answers = {1: "first", -1: "second"}
    lines = [
        [
            *(str(line[name]) for name in ("data", "attack", "norm", "first", "second")),
            f"{100 * line['found_first']:.0f}, {100 * line['found_second']:.0f}",
            f"{line['mean_first']:.3g}, {line['mean_second']:.3g}",
            f"{line['difference']:.2g} ({line['low']:.2g} to {line['high']:.2g})",
            f"{line['n']} of {line['of']}",
            str(line.get(answers.get(surely_larger(line), ""), "undecided")),
        ]
        for line in table.to_dict("records")
    ]
    note = (
        "Means of the samples that were fooled with both models, compared one by one (bootstrap; intervals of 95 %, "
        f"not corrected for how many there are). {ANY_ATTACK.capitalize()}: the smallest that any attack on both found."
    )
    return f"{markdown_table([*head, 'needs the larger'], lines)}\n{note}\n"
