"""The errors a user is meant to read: a line, no traceback; exit code 2 for a mistake, 1 for work that failed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_CHARACTERS = 400
"""Characters of another library's error message that a user sees."""


class UserError(Exception):
    """Something the user wrote cannot be done; the message names the thing, the place and the choices."""


class PluginFailed(Exception):  # noqa: N818  it is what a user reads
    """What a plugin raised or did while it was at work; the message names the plugin, the file and the line."""


class TrainingFailed(UserError):  # noqa: N818  it is what a user reads: a training that failed
    """A training collapsed or ran into numbers that are not finite; other trainings may go on."""


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an exception of any origin, and the next if the first announces it."""
    try:
        first, _, rest = str(error).strip().partition("\n")
        text = " ".join([first, *rest.split()]) if first.rstrip().endswith(":") else first
    except Exception:  # noqa: BLE001  a plugin's exception may fail to describe itself
        text = ""
    text = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a sentence that offers the nearest choice, or lists them all where none is near."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"Choose from: {', '.join(known)}." if known else "There is nothing to choose from."
