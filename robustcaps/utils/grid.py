"""Tables for readers: one grid of formatted cells for Markdown, LaTeX, the HTML report and the terminal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from robustcaps.utils.printable import printable

LATEX_CHARACTERS = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "[": "{[}",
    "]": "{]}",
    "†": "\\dag{}",
}
"""Characters that mean something in LaTeX, and how they are written; in brackets, a row's first cell is no option."""
Tone = Literal["", "good", "warning", "bad"]


@dataclass(frozen=True)
class GridCell:
    """One formatted cell: its text, its interval (shown smaller, or in parentheses), and how it is emphasised."""

    text: str
    interval: str = ""
    bold: bool = False
    tone: Tone = ""
    """Colour in the terminal and in the report."""

    @property
    def markdown(self) -> str:
        """The cell as Markdown."""
        whole = f"{self.text} ({self.interval})" if self.interval else self.text
        escaped = printable(whole).replace("|", "\\|")
        return f"**{escaped}**" if self.bold and escaped else escaped

    @property
    def latex(self) -> str:
        """The cell as LaTeX, its interval in small print."""
        text = escape_latex(self.text)
        text = f"\\textbf{{{text}}}" if self.bold and text else text
        return f"{text} {{\\scriptsize ({escape_latex(self.interval)})}}" if self.interval else text


@dataclass(frozen=True)
class Grid:
    """A table for readers: columns, rows of cells, a title above and a note below."""

    columns: Sequence[str]
    rows: Sequence[Sequence[GridCell]]
    title: str = ""
    note: str = ""
    numeric: frozenset[str] = field(default_factory=frozenset)
    """Columns that are aligned to the right."""

    def markdown(self) -> str:
        """Return the grid as Markdown: title, table, note."""
        rule = ["---:" if name in self.numeric else "---" for name in self.columns]
        head = [GridCell(name).markdown for name in self.columns]
        lines = [head, rule, *([cell.markdown for cell in row] for row in self.rows)]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        title = f"{printable(self.title)}\n\n" if self.title else ""
        note = f"\n{printable(self.note)}\n" if self.note else ""
        return f"{title}{table}{note}"

    def latex(self, label: str = "") -> str:
        """Return the grid as a floating table that needs the package booktabs: the title is its caption."""
        columns = "".join("r" if name in self.numeric else "l" for name in self.columns)
        head = " & ".join(escape_latex(name) for name in self.columns)
        rows = [" & ".join(cell.latex for cell in row) for row in self.rows]
        caption = escape_latex(self.title.strip().rstrip(":"))
        lines = [
            "\\begin{table}",
            "\\centering",
            *([f"\\caption{{{caption}}}"] if caption else []),
            *([f"\\label{{tab:{label}}}"] if label and caption else []),
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            f"{head} \\\\",
            "\\midrule",
            *(f"{row} \\\\" for row in rows),
            "\\bottomrule",
            "\\end{tabular}",
            *([f"\\par\\smallskip{{\\footnotesize {escape_latex(self.note)}}}"] if self.note else []),
            "\\end{table}",
        ]
        return "\n".join(lines) + "\n"


def grids_markdown(grids: Iterable[Grid]) -> str:
    """Return several grids as one page of Markdown."""
    return "\n".join(grid.markdown() for grid in grids)


def grids_latex(grids: Iterable[Grid], name: str) -> str:
    """Return several grids as LaTeX, labelled tab:NAME, tab:NAME-2 and so on."""
    name = re.sub(r"[^\w-]+", "-", name)
    labels = (name if place == 0 else f"{name}-{place + 1}" for place in itertools.count())
    tables = [grid.latex(label) for label, grid in zip(labels, grids, strict=False)]
    return "\n".join(["% Needs \\usepackage{booktabs}.\n", *tables])


def escape_latex(text: str) -> str:
    """Return a text as LaTeX that shows it: nothing in it is a command, minus signs and ranges have their dashes."""
    escaped = "".join(LATEX_CHARACTERS.get(character, character) for character in printable(text))
    ranges = re.sub(r"(?<=\d)-(?=\d)", "--", escaped)
    return re.sub(r"(?<![\w)-])-(?=\d)", "$-$", ranges)


def make_grid(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str = "",
    note: str = "",
    numeric: Iterable[str] = (),
) -> Grid:
    """Return a grid; values that are not cells yet become cells with their text."""
    cells = [[cell if isinstance(cell, GridCell) else GridCell(str(cell)) for cell in row] for row in rows]
    return Grid(tuple(columns), cells, title, note, frozenset(numeric))


def percent(line: Mapping[Any, Any], share: str, *, digits: int = 1) -> GridCell:
    """Return a share of a table's line in percent, with the interval of its columns _low and _high if it has one."""
    value, low, high = (line.get(f"{share}{end}") for end in ("", "_low", "_high"))
    if value is None or pd.isna(value):
        return GridCell("")
    interval = "" if low is None or pd.isna(low) else f"{100 * float(low):.0f}-{100 * float(high or 0):.0f}"
    return GridCell(f"{100 * value:.{digits}f}", interval)


def format_p(p: float) -> str:
    """Return a p-value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def number(value: float | None, spec: str = "g") -> str:
    """Return a number formatted, '' where there is none."""
    return "" if value is None or pd.isna(value) else format(value, spec)


@dataclass(frozen=True)
class Section:
    """A part of the report: a heading, a note, tables, sentences, and tables that are folded away."""

    title: str
    note: str = ""
    grids: Sequence[Grid] = ()
    sentences: Sequence[str] = ()
    folded: Sequence[Grid] = ()
