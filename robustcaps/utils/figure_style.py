"""The style that all figures share: fonts, sizes, colours and deterministic files.

Figures take the current style: `screen`, or `paper` for one column of a paper. `figure_style` changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.text import Text

from robustcaps.errors import UserError, did_you_mean

FORMATS = ("png", "svg", "pdf")
"""What figures can be written as."""
MIN_WIDTH = 2.0
"""Inches; legends and labels leave no room for curves in less."""
MAX_WIDTH = 30.0
"""Inches; more is 3.3 without its point, and takes gigabytes to draw."""


@dataclass(frozen=True)
class FigureStyle:
    """How large fonts and lines are, and how wide a figure is."""

    name: str
    font: float
    """Points."""
    scale: float = 1.0
    """Of lines and markers."""
    width: float | None = None
    """Inches of the whole figure; None: as wide as its panels need, with the legend beside them."""
    dpi: int = 150
    is_paper: bool = False
    """Whether captions are left to the text around the figure, and names of units to the caption."""

    @property
    def rc(self) -> Any:
        """Settings of matplotlib."""
        return {
            "font.size": self.font,
            **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), self.font),
            "axes.titlesize": self.font if self.is_paper else 1.1 * self.font,
            "axes.linewidth": 0.8 * self.scale,
            "grid.linewidth": 0.8 * self.scale,
            "lines.linewidth": 1.5 * self.scale,
            "patch.linewidth": self.scale,
            "svg.hashsalt": "robustcaps",
            "svg.fonttype": "path" if self.is_paper else "none",
            "pdf.fonttype": 42,
        }


SCREEN = FigureStyle("screen", 10)
PAPER = FigureStyle("paper", 7, scale=0.6, width=3.3, dpi=300, is_paper=True)
STYLES = {style.name: style for style in (SCREEN, PAPER)}
STYLE: Any = SCREEN.rc
_current: ContextVar[FigureStyle] = ContextVar("figure_style", default=SCREEN)


def current_style() -> FigureStyle:
    """Return the style in which figures are drawn now."""
    return _current.get()


@contextmanager
def figure_style(name: str = "paper", width: float | None = None) -> Iterator[FigureStyle]:
    """Draw and save figures in a style.

    Args:
        name: 'screen', or 'paper': small fonts and thin lines, no title, 3.3 inches wide.
        width: Inches of the whole figure; panels are arranged to fit.

    Example:
        with rc.figure_style("paper", width=3.3):
            rc.draw_accuracy(results.table).savefig("accuracy.pdf")
    """
    if name not in STYLES:
        raise UserError(f"unknown figure style '{name}'. {did_you_mean(name, STYLES)}")
    if width is not None and not width >= MIN_WIDTH:
        raise UserError(f"figures must be at least {MIN_WIDTH:g} inches wide, not {width:g}.")
    if width is not None and width > MAX_WIDTH:
        raise UserError(f"figures must be at most {MAX_WIDTH:g} inches wide, not {width:g}.")
    style = STYLES[name] if width is None else replace(STYLES[name], width=width)
    token = _current.set(style)
    try:
        with mpl.rc_context(style.rc):
            yield style
    finally:
        _current.reset(token)


@contextmanager
def white_grid() -> Iterator[None]:
    """Draw what is inside in the current style, on a white grid."""
    style: Any = {**sns.axes_style("whitegrid"), **current_style().rc}
    with mpl.rc_context(style):
        yield


def check_formats(formats: Sequence[str]) -> None:
    """Refuse a format that figures are not written in."""
    for each in formats:
        if each not in FORMATS:
            raise UserError(f"unknown figure format '{each}'. {did_you_mean(each, FORMATS)}")


def scaled(size: float) -> float:
    """Return the size of a line or marker in the current style."""
    return size * current_style().scale


def colours(names: Sequence[Any]) -> list[Any]:
    """Return a colour for every name: after ten, darker ones of the same palette, after twenty any."""
    bright: list[Any] = sns.color_palette("colorblind")
    palette = [*bright, *([tuple(0.5 * part for part in colour) for colour in bright])]
    if len(names) <= len(palette):
        return palette[: len(names)]
    many: list[Any] = sns.color_palette("husl", len(names))
    return many


def colours_of(names: Iterable[Any]) -> dict[Any, Any]:
    """Return a colour for every name."""
    listed = list(names)
    return dict(zip(listed, colours(listed), strict=True))


def model_colours(table: pd.DataFrame) -> dict[Any, Any]:
    """Return a colour for every model of a table."""
    return colours_of(table["model"].unique())


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's ending; the same figure always gives the same bytes."""
    _show_dollars(figure)
    style = current_style()
    dates = {".svg": "Date", ".pdf": "CreationDate"}
    metadata = {dates[path.suffix]: None} if path.suffix in dates else {}
    with mpl.rc_context(style.rc):
        figure.savefig(path, dpi=style.dpi, metadata={**metadata, "Title": str(figure.get_label())})


def _show_dollars(figure: Figure) -> None:
    """Show names as they are, also between dollar signs; only the ticks of logarithmic axes are formulas."""
    axes = [axis for each in figure.axes for axis in (each.xaxis, each.yaxis) if axis.get_scale() != "linear"]
    ticks = [tick for axis in axes for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())]
    formulas = {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
    for text in figure.findobj(Text):
        if isinstance(text, Text) and id(text) not in formulas:
            text.set_parse_math(False)
