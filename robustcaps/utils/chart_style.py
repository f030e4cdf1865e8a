"""What the interactive charts share: colours, sizes and how a chart is given its data.

Charts take text, grid and background from the page, so that they follow its theme; marks have colours of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import altair as alt
import pandas as pd

PALETTE = ("#4477aa", "#ee6677", "#228833", "#b8962e", "#33a8d1", "#aa3377", "#888888", "#e07b39", "#3aa58a", "#8e7cc3")
"""After the bright scheme of Paul Tol: distinct for colour-blind readers, with contrast to white and to black."""
INK = "var(--ink)"
"""The colour of text, which the page sets by its theme."""
STATUS_COLOURS = {"trusted": "#228833", "suspicious": "#b8962e", "masked": "#ee6677"}
DIGITS = 4
"""Decimal places of the numbers in a chart."""
ROW_HEIGHT = 42
"""Of a line with its name above it."""


def colour_scale(names: Iterable[Any], *, strong: str = "") -> alt.Scale:
    """Return a scale with a colour for every name; after ten, colours repeat. `strong` has the colour of text."""
    listed = list(dict.fromkeys(map(str, names)))
    colours = dict(zip(listed, cycle(PALETTE), strict=False)) | ({strong: INK} if strong in listed else {})
    return alt.Scale(domain=listed, range=list(colours.values()))


def inline_data(table: pd.DataFrame) -> alt.InlineData:
    """Return the lines of a table as the data of a chart, numbers rounded; what is not finite is null."""
    numbers = table.select_dtypes("float").columns
    rounded = table.assign(**{name: table[name].round(DIGITS) for name in numbers})
    finite = rounded.astype(object).where(rounded.notna() & ~rounded.isin([float("inf"), float("-inf")]), None)
    values: list[Any] = finite.to_dict("records")
    return alt.InlineData(values=values)


def choice(name: str, label: str, options: Sequence[str], value: str | None = None) -> alt.Parameter:
    """Return a parameter that readers choose from a list; the first option if no value is given."""
    binding = alt.binding_select(options=list(options), name=label)
    return alt.param(name=name, value=options[0] if value is None else value, bind=binding)


def percent_axis(title: str) -> alt.Axis:
    """Return an axis of shares in percent."""
    return alt.Axis(title=title, format="%", tickCount=5)
