"""Small helpers for tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from robustcaps.utils.grid import make_grid

ROOT = Path(__file__).parent.parent.parent
"""The folder of the repository."""
RESULTS = ROOT / "results"
"""The reference run."""


def code(text: object) -> str:
    """Return text in the font of code, or nothing."""
    return f"`{text}`" if str(text) else ""


def plain(text: str) -> str:
    """Return a sentence in which nothing is markup but `code`."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\<>*_$])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[str] = ()) -> str:
    """Return a Markdown table."""
    return make_grid(columns, rows, numeric=numeric).markdown()
