"""Two digits over each other summed up: how often a network sees both, or one, by how much they overlap."""

from __future__ import annotations

import pandas as pd

from robustcaps.analysis.published import OVERLAP, OVERLAP_SOURCE
from robustcaps.utils.markdown import markdown_table, percent
from robustcaps.utils.statistics import wilson

ASKED = ["suite", "data", "model", "diagnostic"]
SHARES = ("both", "one_or_both")
ALL = "all"
PARTS = 3
"""Images are parted into so many about equal parts by their overlap."""
PUBLISHED = (
    f"Published, both digits right ({OVERLAP_SOURCE}): capsules with reconstruction {100 * OVERLAP['capsules']:.1f} %, "
    f"baseline CNN {100 * OVERLAP['CNN']:.1f} %."
)


def tabulate_overlap(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line per model over all images, then one per third of them, by overlap.

    both: both digits' classes are the two strongest answers; one_or_both: at least one is. overlap names the shares of
    one digit's box that lie in the other's, in %.
    """
    if rows.empty:
        return rows
    lines = []
    for names, part in rows.groupby(ASKED, sort=False):
        told = dict(zip(ASKED, names, strict=True))
        thirds = pd.qcut(part["overlap"], PARTS, labels=False, duplicates="drop")
        for third in [part, *(group for _, group in part.groupby(thirds))]:
            bounds = [f"{100 * end:.0f}" for end in (third["overlap"].min(), third["overlap"].max())]
            overlap = ALL if third is part else "-".join(bounds)
            both, one = (int((third["found"] >= least).sum()) for least in (2, 1))
            lines.append({**told, "overlap": overlap, "n": len(third), "both": both, "one_or_both": one})
    table = pd.DataFrame(lines)
    for share in SHARES:
        table[f"{share}_low"], table[f"{share}_high"] = wilson(table[share], table["n"])
        table[share] = table[share] / table["n"]
    return table[[*ASKED, "overlap", "n", *(f"{share}{end}" for share in SHARES for end in ("", "_low", "_high"))]]


def overlap_markdown(table: pd.DataFrame) -> str:
    """Return overlaps as a Markdown table, the published errors below it."""
    lines = [
        [*(str(line[name]) for name in ("data", "model", "overlap", "n")), *(percent(line, share) for share in SHARES)]
        for line in table.to_dict("records")
    ]
    head = ["data", "model", "overlap of the boxes %", "n", "both right %", "at least one right %"]
    return f"{markdown_table(head, lines)}\n{PUBLISHED}\n"
