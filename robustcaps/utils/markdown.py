"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a head and lines of cells as a Markdown table; the last `numbers` columns stand to the right."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    whole = [[cell.replace("|", "\\|") for cell in cells] for cells in (head, rule, *lines)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in whole)


def percent(line: Mapping[Any, Any], share: str) -> str:
    """Return a share of a table's line with its interval (_low, _high): '5.0 (3-8)', '' where there is none."""
    value, low, high = (100 * line[f"{share}{end}"] for end in ("", "_low", "_high"))
    return "" if np.isnan(value) else f"{value:.1f} ({low:.0f}-{high:.0f})"
