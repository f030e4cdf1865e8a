"""The layout of figures: panels, legends, titles and labels that fit, as wide as needed or in a given width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustcaps.utils.figure_style import SCREEN, FigureStyle, current_style

CHARACTER = 0.58
"""About how wide a character is, as a share of the font size."""
LEGEND_WIDTH = 2.8
"""Inches beside the panels, where a figure may be as wide as it needs."""
MIN_HEIGHT = 2.0
"""Inches of a panel with the font of the screen."""
MAX_ASPECT = 0.7
"""Height of a panel in a figure of a given width, as a share of its width."""
MAX_LABEL = 28
"""Characters of a line in the label of a row, in a figure of a given width."""
INCH = 72
"""Points."""


def make_panels(
    groups: Sequence[int],
    *,
    columns: int,
    width: float,
    height: float,
    legend: Sequence[Artist] = (),
    shrinks: bool = True,
    narrowest: float = 2.2,
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels in the current style.

    Args:
        groups: How many panels there are; each group begins a new row, except where every group has a single panel.
        columns: How many panels stand side by side at most.
        width: Inches of a panel, where the figure may be as wide as it needs.
        height: Inches of a panel.
        legend: The handles of the legend: beside the panels, or below them in a figure of a given width.
        shrinks: Whether a narrower panel is also lower; not if its height is that of lines of text.
        narrowest: Inches that a panel needs at least with the font of the screen; fewer stand side by side then.
        sharex: Whether all panels have the same x axis.
        sharey: Whether all panels have the same y axis.
    """
    style = current_style()
    groups = [len(groups)] if max(groups) == 1 else groups
    columns = min(columns, max(groups))
    if style.width is not None:
        columns = min(columns, max(1, int(style.width * SCREEN.font / (narrowest * style.font))))
    rows = [columns * place + number for place, number in _places(groups, columns)]
    lines = rows[-1] // columns + 1
    if style.width is None:
        needed = 0.6 + 0.23 * len(legend)
        size = (width * columns + (LEGEND_WIDTH if legend else 0), max(height * lines + 0.4, needed))
    else:
        own = style.width / columns
        size = (style.width, _panel_height(own, height, width, style, shrinks) * lines + _legend_height(legend, style))
    figure = Figure(figsize=size, layout="constrained")
    if style.width is not None:
        pad = style.font / INCH / 3
        figure.get_layout_engine().set(w_pad=pad, h_pad=pad, wspace=0.02, hspace=0.02)  # type: ignore[call-arg, union-attr]
    axes = list(figure.subplots(lines, columns, squeeze=False, sharex=sharex, sharey=sharey).flat)
    for spare in set(range(len(axes))) - set(rows):
        axes[spare].set_axis_off()
    add_legend(figure, legend)
    return figure, [axes[place] for place in rows]


def _panel_height(own: float, height: float, width: float, style: FigureStyle, shrinks: bool) -> float:
    """Return the height of a panel that is narrower (or wider) than it was designed for, in inches."""
    smaller = style.font / SCREEN.font
    if not shrinks:
        return height * smaller
    return max(MIN_HEIGHT * smaller, own * min(height / width, MAX_ASPECT))


def _places(groups: Sequence[int], columns: int) -> Iterator[tuple[int, int]]:
    """Yield the row and the column of every panel."""
    row = 0
    for count in groups:
        for number in range(count):
            yield row + number // columns, number % columns
        row += -(-count // columns)


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Draw the legend of a figure: beside its panels, or below them in a figure of a given width."""
    style = current_style()
    if not handles:
        return
    if style.width is None:
        figure.legend(handles=list(handles), loc="outside right center", frameon=False)
        return
    spacing: Any = {"handlelength": 1.8, "handletextpad": 0.5, "columnspacing": 1.2, "borderpad": 0.0}
    columns = _legend_columns(handles, style)
    figure.legend(handles=list(handles), loc="outside lower center", frameon=False, ncols=columns, **spacing)


def _legend_columns(handles: Sequence[Artist], style: FigureStyle) -> int:
    """Return how many columns of a legend fit into the width of a figure."""
    longest = max(len(line) for each in handles for line in str(each.get_label()).splitlines())
    entry = (CHARACTER * longest + 3.5) * style.font / INCH
    return max(1, min(len(handles), int((style.width or 0) / entry)))


def _legend_height(handles: Sequence[Artist], style: FigureStyle) -> float:
    """Return the height of a legend below the panels, in inches."""
    if not handles:
        return 0.0
    lines = sum(str(each.get_label()).count("\n") for each in handles)
    return (lines - (-len(handles) // _legend_columns(handles, style))) * 1.6 * style.font / INCH


def set_caption(figure: Figure, text: str, common: str = "") -> None:
    """Say what a figure shows, and what its panels have in common: above them, or, for a paper, in the file alone."""
    figure.set_label(f"{text}; {common}" if common else text)
    if not current_style().is_paper:
        title = figure.suptitle(text)
        title.set_text(_fill(text, figure.get_figwidth(), float(title.get_fontsize())))


def set_title(axis: Axes, text: str) -> None:
    """Set the title of a panel, in several lines where it is too wide."""
    axis.set_title(_wrapped(axis, text))


def set_xlabel(axis: Axes, text: str) -> None:
    """Set the label of the x axis, in several lines where it is too wide."""
    axis.set_xlabel(text if current_style().width is None else _wrapped(axis, text))


def set_ylabel(axis: Axes, text: str) -> None:
    """Set the label of the y axis, in several lines where it is too long."""
    axis.set_ylabel(text if current_style().width is None else _wrapped(axis, text, vertical=True))


def _wrapped(axis: Axes, text: str, *, vertical: bool = False) -> str:
    """Return a text with line breaks where it is longer than a panel."""
    style, place, figure = current_style(), axis.get_subplotspec(), axis.get_figure(root=True)
    if place is None or figure is None:
        return text
    rows, columns = place.get_gridspec().get_geometry()
    room = 0.65 * figure.get_figheight() / rows if vertical else 0.9 * figure.get_figwidth() / columns
    return _fill(text, room, style.font)


def _fill(text: str, room: float, size: float) -> str:
    """Return a text with line breaks where it is longer than so many inches in a font of this size."""
    characters = max(8, int(room * INCH / (CHARACTER * size)))
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, characters, **options))


def break_label(text: str) -> str:
    """Return the label of a row, in several lines where it would leave no room in a figure of a given width."""
    if current_style().width is None:
        return text
    return "\n".join(textwrap.wrap(text, MAX_LABEL, break_long_words=False, break_on_hyphens=False))


def name_panels(keys: Sequence[Sequence[object]]) -> tuple[list[str], str]:
    """Return the titles of panels, and what all of them have in common.

    For a paper, titles are short: what is common belongs into the caption.
    """
    if not current_style().is_paper:
        return [", ".join(map(str, key)) for key in keys], ""
    varied = [len(set(values)) > 1 for values in zip(*keys, strict=True)]
    titles = [", ".join(str(part) for part, varies in zip(key, varied, strict=True) if varies) for key in keys]
    return titles, ", ".join(str(part) for part, varies in zip(keys[0], varied, strict=True) if not varies)


def set_labels(axis: Axes, labels: Sequence[str]) -> None:
    """Set the labels of a categorical x axis, at an angle where they would overlap in a figure of a given width."""
    axis.set_xticks(range(len(labels)), labels)
    style, place = current_style(), axis.get_subplotspec()
    if style.width is None or place is None:
        return
    room = 0.8 * style.width / place.get_gridspec().ncols * INCH / (CHARACTER * style.font)
    if len(labels) * (max(map(len, labels), default=0) + 1) > room:
        axis.tick_params(axis="x", rotation=30)
        for text in axis.get_xticklabels():
            text.set(horizontalalignment="right", rotation_mode="anchor")
