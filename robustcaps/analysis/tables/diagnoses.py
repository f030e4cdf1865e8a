"""Diagnoses summed up: a line per verdict, per check, and per model's gradients by loss; also as Markdown."""

from __future__ import annotations

import numpy as np
import pandas as pd

from robustcaps.utils.markdown import markdown_table, percent
from robustcaps.utils.statistics import wilson

ASKED = ["suite", "data", "model", "diagnostic", "norm", "eps", "loss"]
FINDING = ["check", "kind", "flagged", "proof", "value", "threshold", "words", "meaning", "source", "remedy"]
SHARES = ("clean", "naive", "corrected")


def tabulate_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per verdict: its status, the accuracies with their intervals, and which checks were flagged."""
    if rows.empty:
        return rows
    table = rows.drop_duplicates(ASKED)[[*ASKED, "n", "status", *SHARES, "summary"]].reset_index(drop=True)
    for share in SHARES:
        ends = wilson((table[share].fillna(0) * table["n"]).round(), table["n"])
        for end, bound in zip(("low", "high"), ends, strict=True):
            table[f"{share}_{end}"] = np.where(table[share].isna(), np.nan, bound)
    named = rows.assign(check=rows["check"] + np.where(rows["proof"], "!", ""))
    flags = named[named["flagged"]].groupby(ASKED, sort=False)["check"].agg(" ".join).rename("flagged").reset_index()
    table = table.merge(flags, on=ASKED, how="left").fillna({"flagged": ""})
    shares = [f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")]
    return table[[*ASKED, "n", "status", *shares, "flagged", "summary"]]


def tabulate_checks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per check of every verdict."""
    return rows if rows.empty else rows[[*ASKED, "status", *FINDING]]


def tabulate_gradients(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per (model, loss): zeros among the gradients' entries, their sizes, and orders below the first.

    zeros is the mean share of entries that are exactly zero, none the share of samples without any other entry;
    log10_l2 is log10 of the median norm, and orders that of the first model of the table less this one's.
    """
    if rows.empty:
        return rows
    lines = []
    for names, part in rows.groupby(["suite", "data", "model", "diagnostic", "loss"], sort=False):
        told = dict(zip(("suite", "data", "model", "diagnostic", "loss"), names, strict=True))
        size = float(part["l2"].median())
        lines.append(
            {
                **told,
                "n": len(part),
                "zeros": part["zeros"].mean(),
                "none": (part["zeros"] == 1).mean(),
                "not_finite": (~part["finite"]).mean(),
                "log10_l2": np.log10(size) if size > 0 else -np.inf,
            }
        )
    table = pd.DataFrame(lines)
    first = table.groupby(["suite", "data", "diagnostic", "loss"], sort=False)["log10_l2"].transform("first")
    return table.assign(orders=first - table["log10_l2"])


def verdicts_markdown(table: pd.DataFrame) -> str:
    """Return verdicts as a Markdown table."""
    lines = [
        [
            *(str(line[name]) for name in ("data", "model", "diagnostic")),
            f"{line['eps']:g} {line['norm']}",
            *(percent(line, share) for share in SHARES),
            f"**{line['status']}**" if line["status"] != "trusted" else line["status"],
            line["flagged"].replace("!", "").replace(" ", ", "),
        ]
        for line in table.to_dict("records")
    ]
    head = ["data", "model", "attacked", "eps", "clean %", "naive %", "corrected %", "verdict", "flagged"]
    return markdown_table(head, lines)


def checks_markdown(table: pd.DataFrame) -> str:
    """Return every check of every verdict as a Markdown table, flagged ones in bold."""
    lines = [
        [
            *(str(line[name]) for name in ("data", "model", "diagnostic")),
            f"{line['eps']:g} {line['norm']}",
            f"**{line['check']}**" if line["flagged"] else str(line["check"]),
            str(line["words"]),
        ]
        for line in table.to_dict("records")
    ]
    return markdown_table(["data", "model", "attacked", "eps", "check", "seen"], lines)


def gradients_markdown(table: pd.DataFrame) -> str:
    """Return gradients by loss as a Markdown table."""
    lines = [
        [
            *(str(line[name]) for name in ("data", "model", "loss")),
            str(line["n"]),
            f"{100 * line['zeros']:.1f}",
            f"{100 * line['none']:.1f}",
            f"{line['log10_l2']:.1f}",
            f"{line['orders']:.1f}",
        ]
        for line in table.to_dict("records")
    ]
    head = ["data", "model", "loss", "n", "zero entries %", "samples without gradient %", "log10 of the median norm"]
    return markdown_table([*head, "orders below the first"], lines)
