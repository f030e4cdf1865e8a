"""TOML that a user wrote: what Python cannot handle is refused, with a reason."""

from __future__ import annotations

import tomllib
from typing import Any

from robustcaps.errors import UserError

MAX_DEPTH = 20
"""Arrays and tables inside each other."""
MAX_INTEGER = 2**63 - 1
"""What TOML itself promises for integers."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises:
        TOMLDecodeError: It is not TOML.
        UserError: A number is too large, or something is nested too deeply.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # more digits than Python converts
        raise UserError("a number has too many digits.") from error
    except RecursionError as error:
        raise UserError(f"arrays or tables are nested more than {MAX_DEPTH} deep.") from error
    _check(content)
    return content


def _check(content: dict[str, Any]) -> None:
    """Refuse integers of more than 64 bits, and deep nesting."""
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        if any(isinstance(value, int) and abs(value) > MAX_INTEGER for value in level):
            raise UserError("an integer has more than 64 bits.")
        lists = [value.values() if isinstance(value, dict) else value for value in level if _has_parts(value)]
        level = [part for parts in lists for part in parts]
    if level:
        raise UserError(f"arrays or tables are nested more than {MAX_DEPTH} deep.")


def _has_parts(value: object) -> bool:
    return isinstance(value, (dict, list))
