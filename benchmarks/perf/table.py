"""The measurements as one table: for files, for the manual and for the screen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
import torch
from rich.table import Table

from benchmarks.perf.comparison import Measurement
from benchmarks.perf.timing import IDLE

HEAD = ("model", "batch", "by", "forward ms", "forward + backward ms", "attack ms", "peak memory MB", "epoch s")


def tabulate(cases: Iterable[Sequence[Measurement]], load: float) -> pd.DataFrame:
    """Return a row per measurement, with how many times the textbook's need is its own."""
    rows = []
    for case in cases:
        (textbook,) = (one for one in case if one.implementation == "textbook")
        for one in case:
            ratios = {
                "forward_ratio": textbook.forward_ms / one.forward_ms,
                "training_ratio": textbook.training_ms / one.training_ms,
                "memory_ratio": textbook.peak_mb / one.peak_mb if textbook.peak_mb and one.peak_mb else None,
            }
            rows.append(asdict(one) | ratios)
    table = pd.DataFrame(rows).round(3)
    return table.assign(torch=torch.__version__, threads=torch.get_num_threads(), load=round(load, 2))


def cells(table: pd.DataFrame) -> list[list[str]]:
    """Return the table as text, numbers with their ratios."""
    return [
        [
            row["model"],
            str(row["batch"]),
            row["implementation"],
            number(row["forward_ms"]) + times(row, "forward_ratio", "{:.1f}x"),
            number(row["training_ms"]) + times(row, "training_ratio", "{:.1f}x"),
            number(row["attack_ms"]),
            number(row["peak_mb"]) + times(row, "memory_ratio", "1/{:.1f}"),
            number(row["epoch_s"]),
        ]
        for row in table.to_dict("records")
    ]


def number(value: float) -> str:
    """Return a number with about three digits; nothing for one that was not measured."""
    if pd.isna(value):
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def times(row: Mapping[Hashable, Any], ratio: str, form: str) -> str:
    """Return a ratio in brackets; nothing for the textbook's to itself, or for one that was not measured."""
    shown = row["implementation"] != "textbook" and not pd.isna(row[ratio])
    return f" ({form.format(row[ratio])})" if shown else ""


def markdown(table: pd.DataFrame) -> str:
    """Return the table for the manual, with the circumstances it was measured in."""
    facts = table.iloc[0]
    state = "" if facts["load"] <= IDLE else " (not idle: rough)"
    circumstances = (
        f"torch {facts['torch']}, {facts['threads']} threads, load average {facts['load']:.1f}{state}; "
        "ms per image of 32x32. In brackets: how many times as fast as the textbook, which part of its memory."
    )
    rule = ["---", "---:", "---", *["---:"] * (len(HEAD) - 3)]
    lines = ["| " + " | ".join(line) + " |" for line in [list(HEAD), rule, *cells(table)]]
    return "\n".join([circumstances, "", *lines]) + "\n"


def grid(table: pd.DataFrame) -> Table:
    """Return the table for the screen."""
    shown = Table(*HEAD, title="against the textbook, 32x32, per image (times as fast, share of memory)")
    for line in cells(table):
        shown.add_row(*line, end_section=line[2] == "textbook")
    return shown
