"""Text of any origin for the terminal."""

from __future__ import annotations

from rich import markup

from robustcaps.utils.printable import printable


def escape(text: str) -> str:
    """Return a text that shows on the terminal as it is: no markup, no control characters, one line."""
    return markup.escape(printable(text))
