"""The models of a run, one line each: size, test error, published error, accuracy under attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.analysis.published import ERRORS_SOURCE, published_error
from robustcaps.suite.spec import WORST_CASE
from robustcaps.utils.grid import Grid, make_grid, number, percent

MAX_ATTACK_COLUMNS = 4
"""With more attacks than this, only their worst case is shown."""


def tabulate_models(models: Sequence[Mapping[str, Any]], summary: pd.DataFrame) -> pd.DataFrame:
    """Return a line per model: `models` are the records of their cards (run.json), `summary` is the run's table.

    Errors are in %, accuracies under untargeted attacks shares; published_error is empty where no paper has the row,
    error where it was not measured; routing says whether a capsule network's routing is alive. Of many
    attacks, their worst case stands for all.
    """
    untargeted = summary[summary["goal"] == "untargeted"]
    worst = untargeted["attack"] == WORST_CASE
    attacked = untargeted[worst if len(set(untargeted["attack"][~worst])) > MAX_ATTACK_COLUMNS else ~worst]
    lines = []
    for model in models:
        accuracy = np.nan if model["accuracy"] is None else model["accuracy"]
        low, high = model["interval"] or (np.nan, np.nan)
        own = attacked[(attacked["model"] == model["label"]) & (attacked["data"] == model["data"])]
        lines.append(
            {
                "data": model["data"],
                "model": model["label"],
                "parameters": model["parameters"],
                "n_test": model["n_test"],
                "error": 100 * (1 - accuracy),
                "error_low": 100 * (1 - high),
                "error_high": 100 * (1 - low),
                "published_error": published_error(model["name"], model["options"], model.get("dataset", "toys")),
                "routing": (model.get("routing") or {}).get("status", ""),
                "n_attacked": own["n"].max(),
                **{f"{line.attack} {line.norm} {line.eps:g}": line.accuracy for line in own.itertuples() if line.eps},
            }
        )
    return pd.DataFrame(lines)


def model_grids(table: pd.DataFrame) -> list[Grid]:
    """Return the table of models for readers, in %."""
    attacks = list(table.columns[table.columns.get_loc("n_attacked") + 1 :])  # type: ignore[operator]
    columns = ["data", "model", "parameters", "test error % (Wilson 95 %)", "published %", "routing", *attacks]
    rows = [
        [
            line["data"],
            line["model"],
            f"{line['parameters']:,}",
            _format_error(line),
            number(line["published_error"], ".1f"),
            "" if pd.isna(line["routing"]) else line["routing"],
            *(percent(line, name).text for name in attacks),
        ]
        for line in table.to_dict("records")
    ]
    measured = table["n_test"].dropna()
    tested = f"test errors on {int(measured.max()):,} images, " if len(measured) else ""
    note = f"Published: {ERRORS_SOURCE}. Ours: {tested}accuracy under attack (%) on {table['n_attacked'].max():g}."
    return [make_grid(columns, rows, note=note, numeric=columns[2:])]


def _format_error(line: Mapping[Any, Any]) -> str:
    """Return a test error with its interval."""
    if pd.isna(line["error"]):
        return "not measured"
    return f"{line['error']:.1f} ({line['error_low']:.1f}-{line['error_high']:.1f})"
