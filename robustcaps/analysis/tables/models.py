"""The models of a run, one line each: what they are, their test error, what a paper printed, what attacks leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from robustcaps.analysis.published import ERRORS_SOURCE, published_error
from robustcaps.analysis.tables.summary import WORST_CASE
from robustcaps.utils.markdown import markdown_table

MOST_ATTACKS = 4
"""How many attacks are shown one by one."""


def tabulate_models(models: Sequence[Mapping[str, Any]], summary: pd.DataFrame) -> pd.DataFrame:
    """Return a line per model: `models` are the records of their cards (run.json), `summary` is the run's table.

    Errors are in %, accuracies under untargeted attacks shares; published_error is empty where no paper has the row.
    Of many attacks, their worst case stands for all.
    """
    untargeted = summary[summary["goal"] == "untargeted"]
    worst = untargeted["attack"] == WORST_CASE
    attacked = untargeted[worst if len(set(untargeted["attack"][~worst])) > MOST_ATTACKS else ~worst]
    lines = []
    for model in models:
        low, high = model["interval"]
        own = attacked[(attacked["model"] == model["label"]) & (attacked["data"] == model["data"])]
        lines.append(
            {
                "data": model["data"],
                "model": model["label"],
                "parameters": model["parameters"],
                "n_test": model["n_test"],
                "error": 100 * (1 - model["accuracy"]),
                "error_low": 100 * (1 - high),
                "error_high": 100 * (1 - low),
                "published_error": published_error(model["name"], model["options"], model.get("dataset", "toys")),
                "n_attacked": own["n"].max(),
                **{f"{line.attack} {line.norm} {line.eps:g}": line.accuracy for line in own.itertuples() if line.eps},
            }
        )
    return pd.DataFrame(lines)


def models_markdown(table: pd.DataFrame) -> str:
    """Return the table of models as Markdown, in %."""
    attacks = list(table.columns[table.columns.get_loc("n_attacked") + 1 :])  # type: ignore[operator]
    head = ["data", "model", "parameters", "test error % (Wilson 95 %)", "published %", *attacks]
    lines = []
    for line in table.to_dict("records"):
        error = f"{line['error']:.1f} ({line['error_low']:.1f}-{line['error_high']:.1f})"
        published = "" if pd.isna(line["published_error"]) else f"{line['published_error']:.1f}"
        shares = ["" if pd.isna(line[name]) else f"{100 * line[name]:.1f}" for name in attacks]
        lines.append([line["data"], line["model"], f"{line['parameters']:,}", error, published, *shares])
    counts = (
        f"test errors on {table['n_test'].max():,} images, accuracy under attack (%) on {table['n_attacked'].max():g}"
    )
    return f"{markdown_table(head, lines, numbers=3 + len(attacks))}\nPublished: {ERRORS_SOURCE}. Ours: {counts}.\n"
