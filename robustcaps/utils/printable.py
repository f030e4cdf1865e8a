"""Names that anybody may have written, for terminals, tables and figures."""

from __future__ import annotations

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that are not shown, or change how the rest is: control, format, surrogates, line separators."""


def printable(text: str) -> str:
    """Return a text with control characters and line breaks written as escapes."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
