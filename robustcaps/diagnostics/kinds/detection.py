"""Detection summed up: how often attacks succeed, are flagged, and get past classifier and detector both."""

from __future__ import annotations

import numpy as np
import pandas as pd

from robustcaps.analysis.tables.summary import KEYS
from robustcaps.utils.markdown import markdown_table, percent
from robustcaps.utils.statistics import wilson

CLEAN = "clean"
"""The attack that leaves images as they are: what is flagged of its rows are false alarms."""
OF_ALL = ("fooled", "flagged", "undetected")
"""Shares of all samples; `detected` is one of the fooled."""
ENDS = ("", "_low", "_high")
ASKED = ["suite", "data", "model", "diagnostic"]


def detection_rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the shares fooled, flagged and undetected with Wilson's intervals, one line per model, attack and budget.

    detected is the share flagged of what is fooled, NaN where nothing is. A sample's rows (several targets or seeds)
    are averaged first and count once. With the attack 'clean', flagged are the false alarms.
    """
    keys = [name for name in ("diagnostic", *KEYS) if name in rows]
    table = rows.groupby(keys, sort=False).agg(n=("index", "nunique"), **{rate: (rate, "mean") for rate in OF_ALL})
    for rate in OF_ALL:
        table[f"{rate}_low"], table[f"{rate}_high"] = wilson(table[rate] * table["n"], table["n"])
    table["detected"] = 1 - table["undetected"] / table["fooled"].where(table["fooled"] > 0)
    fooled = table["fooled"] * table["n"]
    for end, bound in zip(ENDS[1:], wilson(table["detected"].fillna(0) * fooled, fooled), strict=True):
        table[f"detected{end}"] = np.where(table["detected"].isna(), np.nan, bound)
    return table[["n", *(f"{rate}{end}" for rate in (*OF_ALL, "detected") for end in ENDS)]].reset_index()


def tabulate_detection(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per (model, attack, eps) of a suite's rows.

    success: how often the attack did; detected: how many of these were flagged; undetected: how often it succeeded and
    was not flagged; false_alarms: how many of the same images are flagged unattacked.
    """
    if rows.empty:
        return rows
    rates = detection_rates(rows)
    alarms = {f"flagged{end}": f"false_alarms{end}" for end in ENDS}
    clean = rates[rates["attack"] == CLEAN].rename(columns=alarms)[[*ASKED, *alarms.values()]]
    names = {f"fooled{end}": f"success{end}" for end in ENDS}
    table = rates[rates["attack"] != CLEAN].rename(columns=names).merge(clean, on=ASKED, how="left")
    shares = [f"{rate}{end}" for rate in ("success", "detected", "undetected", "false_alarms") for end in ENDS]
    return table[[*ASKED, "attack", "norm", "eps", "n", *shares]]


def detection_markdown(table: pd.DataFrame) -> str:
    """Return detection as a Markdown table."""
    shares = ("success", "detected", "undetected", "false_alarms")
    head = ["data", "model", "attack", "eps", "n", *(f"{share.replace('_', ' ')} %" for share in shares)]
    lines = [
        [
            *(str(line[name]) for name in ("data", "model", "attack")),
            f"{line['eps']:g} {line['norm']}",
            str(line["n"]),
            *(percent(line, share) for share in shares),
        ]
        for line in table.to_dict("records")
    ]
    return markdown_table(head, lines)
