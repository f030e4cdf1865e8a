"""Novel viewpoints summed up: errors on familiar and on novel views, and what the paper printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robustcaps.analysis.published import VIEWS_SOURCE, published_views
from robustcaps.utils.markdown import markdown_table, percent
from robustcaps.utils.statistics import wilson

ASKED = ["suite", "data", "model", "diagnostic", "by"]
SEEN = ("familiar", "novel")


def tabulate_views(rows: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a line per model: its errors on familiar and on novel views; after those of an angle the published ones.

    `models` are the records of their cards (run.json): trained_on are the views of the training (a fair test has the
    familiar ones there), wanted and reached its `stop_error` and the error on held-out familiar samples it ended with.
    """
    if rows.empty:
        return rows
    lines = [
        {**dict(zip(ASKED, names, strict=True)), "source": "measured", **_errors(part)}
        for names, part in rows.groupby(ASKED, sort=False)
    ]
    table = pd.DataFrame(lines).merge(_trainings(models), on=["data", "model"], how="left")
    angles = list(table["by"].unique())
    whole = pd.concat([table, _published(table)], ignore_index=True)
    return whole.sort_values("by", key=lambda by: by.map(angles.index), kind="stable", ignore_index=True)


def _errors(part: pd.DataFrame) -> dict[str, float]:
    """Return n, error and its interval, of familiar and of novel views."""
    errors: dict[str, float] = {}
    for name, seen in zip(SEEN, (part[part["familiar"]], part[~part["familiar"]]), strict=True):
        wrong, n = int((~seen["right"]).sum()), len(seen)
        low, high = wilson(wrong, n)
        share = wrong / n if n else np.nan
        errors |= {f"n_{name}": n, name: share, f"{name}_low": float(low), f"{name}_high": float(high)}
    return errors


def _trainings(models: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return what the cards say about views and errors; runs of old do not."""
    lines = [
        {
            "data": model["data"],
            "model": model["label"],
            "trained_on": model.get("data_options", {}).get("views", "all"),
            "wanted": model.get("stop_error"),
            "reached": np.nan if model.get("validation_accuracy") is None else 1 - model["validation_accuracy"],
        }
        for model in models
    ]
    columns = ["data", "model", "trained_on", "wanted", "reached"]
    return pd.DataFrame(lines, columns=columns).astype({"wanted": float, "reached": float})


def _published(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of the paper for the angles of a table, without intervals: it has none."""
    lines = []
    for suite, by in table[["suite", "by"]].drop_duplicates().itertuples(index=False):
        for model, errors in published_views(by).items():
            told = {"suite": suite, "data": "smallNORB", "model": model, "diagnostic": "", "by": by}
            lines.append({**told, "source": VIEWS_SOURCE, **errors, "trained_on": f"familiar-{by}"})
    return pd.DataFrame(lines)


def views_markdown(table: pd.DataFrame) -> str:
    """Return errors on familiar and novel views as a Markdown table."""
    lines = [
        [
            *(str(line[name]) for name in ("by", "data", "model")),
            "" if pd.isna(line["trained_on"]) else line["trained_on"],
            _stop(line),
            *(_error(line, name) for name in SEEN),
            *("" if pd.isna(line[f"n_{name}"]) else f"{line[f'n_{name}']:.0f}" for name in SEEN),
        ]
        for line in table.to_dict("records")
    ]
    head = ["views by", "data", "model", "trained on", "held-out error % (wanted)"]
    head += ["error on familiar views %", "error on novel views %", "n familiar", "n novel"]
    note = f"Lines of smallNORB: published, {VIEWS_SOURCE}, another dataset."
    return f"{markdown_table(head, lines)}\n{note}\n"


def _stop(line: Mapping[Any, Any]) -> str:
    """Return the held-out error at the end of a training, and the one it was to stop at."""
    reached, wanted = line["reached"], line["wanted"]
    return "" if pd.isna(reached) else f"{100 * reached:.1f}" + ("" if pd.isna(wanted) else f" ({100 * wanted:g})")


def _error(line: Mapping[Any, Any], name: str) -> str:
    """Return an error in %, with its interval where it has one."""
    measured = not pd.isna(line[f"{name}_low"])
    return percent(line, name) if measured or pd.isna(line[name]) else f"{100 * line[name]:.1f}"
