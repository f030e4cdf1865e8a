"""Norms of the smallest adversarial perturbations, and which model needs the larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.analysis.published import SIZES_SOURCE, published_size
from robustcaps.analysis.tables.summary import RUN
from robustcaps.utils.grid import Grid, make_grid, number
from robustcaps.utils.statistics import mean_interval

MEANS = ["mean", "mean_low", "mean_high"]
SETTING = ["suite", "data", "norm", "unit"]
ANY_ATTACK = "any of these"
"""Label of the smallest perturbation that any attack on both models found."""
MIN_SAMPLES = 10
"""With fewer samples, a bootstrap interval is too narrow to decide anything."""


def smallest_norms(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the norm of the smallest successful perturbation of each sample: 0 without any, inf where none succeeded.

    Only minimum-norm attacks count: with a fixed eps, norms say more about the eps than about the model.
    """
    attacked = rows[(rows["eps"] > 0) & rows["closest"] & (rows["target"] != rows["label"])]
    linf_or_l2 = attacked["linf"].where(attacked["norm"] == "linf", attacked["l2"])
    norm = attacked.get("size", linf_or_l2)  # rows of older runs have no sizes in other norms
    norms = attacked.assign(size=np.where(attacked["fooled"], norm, np.inf))
    return norms.groupby([*RUN, "index"], sort=False, observed=True)["size"].min().reset_index()


def tabulate_distances(norms: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return median, quartiles and mean of the smallest perturbations, one line per (model, attack).

    `found` is the share of samples that were fooled at all; a quartile beyond it is infinite, and the mean is over the
    fooled samples alone, with a bootstrap interval (95 %). published_mean is what a paper reports for such a network;
    `models` are the records that tell which network a label stands for.
    """
    networks = {model["label"]: model["name"] for model in models}
    lines: list[dict[str, Any]] = []
    for key, part in norms.groupby(RUN, sort=False, observed=True):
        names = dict(zip(RUN, map(str, key), strict=True))
        low, middle, high = (_quantile(part["size"], share) for share in (0.25, 0.5, 0.75))
        quartiles = {"quartile_low": low, "median": middle, "quartile_high": high}
        finite = np.isfinite(part["size"])
        means = dict(zip(MEANS, mean_interval(part["size"][finite]), strict=True))
        line = {**names, "n": len(part), "found": float(finite.mean()), **quartiles, **means}
        lines.append({**line, "published_mean": _published_mean(names, networks)})
    columns = [*RUN, "n", "found", "quartile_low", "median", "quartile_high", *MEANS, "published_mean"]
    return pd.DataFrame(lines, columns=columns).astype({"published_mean": float})


def _published_mean(names: Mapping[str, str], networks: Mapping[str, str]) -> float | None:
    """Return the published mean L2 norm for the network, dataset and attack of a line, if there is one."""
    if names["norm"] != "l2" or names["goal"] != "untargeted":
        return None
    return published_size(networks.get(names["model"], ""), names["data"], names["attack"])


def _quantile(norms: pd.Series, share: float) -> float:
    """Return a quantile that is one of the norms: interpolation would average infinities."""
    return float(np.quantile(norms, share, method="inverted_cdf"))


def compare_norms(norms: pd.DataFrame) -> pd.DataFrame:
    """Compare which model needs the larger perturbations: a line per pair and attack, then one of `ANY_ATTACK`.

    That one takes the smallest perturbation that any attack on both models found. Of the `of` samples that both models
    have, `n` were fooled with both and are compared in pairs; found_first and found_second are the shares fooled with
    each. difference is the first mean minus the second, with a bootstrap interval. Pairs without a sample that was
    fooled with both have no line.
    """
    lines: list[dict[str, Any]] = []
    for key, part in norms[norms["goal"] == "untargeted"].groupby(SETTING, sort=False, observed=True):
        setting = dict(zip(SETTING, key, strict=True))
        by_attack = part.pivot_table(
            index=["attack", "index"], columns="model", values="size", aggfunc="min", sort=False
        )
        for pair in itertools.combinations(by_attack.columns, 2):
            lines += [{**setting, **line} for line in _paired_lines(by_attack[list(pair)].dropna())]
    return pd.DataFrame(lines)


def _paired_lines(norms: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the comparison of two models' norms (by attack and sample) for each attack, then for all attacks."""
    for attack, part in (*norms.groupby(level="attack", sort=False, observed=True), (ANY_ATTACK, norms)):
        both = part.groupby(level="index", sort=False, observed=True).min()
        fooled = both[np.isfinite(both).all(axis=1)]
        if fooled.empty:
            continue
        line: dict[str, Any] = {"attack": attack, "n": len(fooled), "of": len(both)}
        for side, model in zip(("first", "second"), both.columns, strict=True):
            found = float(np.isfinite(both[model]).mean())
            line |= {side: model, f"found_{side}": found, f"mean_{side}": fooled[model].mean()}
        difference = mean_interval(fooled[line["first"]] - fooled[line["second"]])
        yield line | dict(zip(("difference", "low", "high"), difference, strict=True))


def larger_side(line: Mapping[Any, Any]) -> int:
    """Return 1 if the first model of a comparison needs larger perturbations, -1 if the second, 0 if undecided.

    It is decided where the 95 % interval of the difference excludes 0. A perturbation that was not found would add to
    the mean, so the model with the smaller mean must not be fooled on fewer samples.
    """
    sign = int(line["low"] > 0) - int(line["high"] < 0)
    smaller_fooled_less = sign * (line["found_first"] - line["found_second"]) > 0
    return 0 if smaller_fooled_less or line["n"] < MIN_SAMPLES else sign


def norm_sentence(line: Mapping[Any, Any]) -> str:
    """Return a decided comparison as a sentence: which model needs the larger perturbations."""
    order = ("first", "second") if line["difference"] >= 0 else ("second", "first")
    larger, smaller = (line[name] for name in order)
    low, high = (line["low"], line["high"]) if order[0] == "first" else (-line["high"], -line["low"])
    means = " vs ".join(f"{line[f'mean_{name}']:.3g}" for name in order)
    interval = f"difference {abs(line['difference']):.2g} (95 % CI {low:.2g} to {high:.2g}, paired bootstrap)"
    setting = f"on {line['data']} ({line['norm']}, the smallest that any attack on both found)"
    numbers = f"mean {means}, {interval}, n = {line['n']} of {line['of']}"
    return f"{larger} needs larger perturbations than {smaller} {setting}: {numbers}."


def distance_grids(table: pd.DataFrame) -> list[Grid]:
    """Return smallest perturbations for readers, beside the published means."""
    columns = ["data", "attack", "model", "goal", "norm", "n", "fooled %", "mean (95 %)", "median", "published mean"]
    rows = [
        [
            *(str(line[name]) for name in ("data", "attack", "model", "goal", "norm", "n")),
            f"{100 * line['found']:.1f}",
            _mean_with_interval(line),
            f"{line['median']:.3g}",
            number(line["published_mean"], ".2f"),
        ]
        for line in table.to_dict("records")
    ]
    note = "A sample that is misclassified without any perturbation counts as 0. *: of the fooled samples alone."
    return [make_grid(columns, rows, note=f"{note} Published: {SIZES_SOURCE}.", numeric=columns[5:])]


def _mean_with_interval(line: Mapping[Any, Any]) -> str:
    mean, low, high = (line[name] for name in MEANS)
    star = "" if line["found"] == 1 else "*"
    return "" if np.isnan(mean) else f"{mean:.3g}{star} ({low:.3g}-{high:.3g})"


def norm_comparison_grids(table: pd.DataFrame) -> list[Grid]:
    """Return which model needs the larger perturbations for readers."""
    columns = ["data", "attack", "norm", "first", "second", "fooled %", "means", "difference (95 %)", "n"]
    answers = {1: "first", -1: "second"}
    rows = [
        [
            *(str(line[name]) for name in ("data", "attack", "norm", "first", "second")),
            f"{100 * line['found_first']:.0f}, {100 * line['found_second']:.0f}",
            f"{line['mean_first']:.3g}, {line['mean_second']:.3g}",
            f"{line['difference']:.2g} ({line['low']:.2g} to {line['high']:.2g})",
            f"{line['n']} of {line['of']}",
            str(line.get(answers.get(larger_side(line), ""), "undecided")),
        ]
        for line in table.to_dict("records")
    ]
    note = (
        "Means over the samples that were fooled with both models, paired (bootstrap; 95 % intervals, uncorrected "
        f"for multiple comparisons). {ANY_ATTACK.capitalize()}: the smallest that any attack on both found."
    )
    return [make_grid([*columns, "needs the larger"], rows, note=note)]
