"""Words of the command line as values; what cannot be read is a UserError that says how to write it."""

from __future__ import annotations

import tomllib
from typing import Any, Literal

from robustcaps.errors import UserError, did_you_mean
from robustcaps.utils.toml import parse_toml


def eps_list(text: str) -> list[float]:
    """Return the numbers of a list such as 0.05,0.1 or 2/255,8/255."""
    try:
        return [_number(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"--eps: '{text}' is not a list of numbers such as 0.05,0.1 or 2/255,8/255.") from error


def eps_value(text: str | float) -> float:
    """Return a number such as 0.03 or 8/255; a default is a number already."""
    try:
        return _number(str(text))
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"--eps: '{text}' is not a number such as 0.03 or 8/255.") from error


def _number(text: str) -> float:
    """Return a number or a fraction, as papers write budgets."""
    number, slash, divisor = text.partition("/")
    return float(number) / float(divisor) if slash else float(number)


def sample_numbers(text: str) -> list[int]:
    """Return the numbers of a list such as 0,7."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError(f"--samples: '{text}' is not a list of sample numbers such as 0,7.") from error


def inspected_part(text: str) -> Literal["routing", "decoder"]:
    """Return which part of a network to inspect."""
    if text == "routing":
        return "routing"
    if text == "decoder":
        return "decoder"
    raise UserError(f"inspect: unknown part '{text}'. {did_you_mean(text, ('routing', 'decoder'))}")


def class_word(text: str | None) -> int | str | None:
    """Return a class as its number, if it is one, else as its name."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return text


def assignments(settings: list[str] | None, word: str = "--set") -> dict[str, Any]:
    """Return NAME=VALUE words after `word` as options; values are read as TOML, else as plain text."""
    found: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{word} {setting}: write NAME=VALUE, e.g. {word} steps=20.")
        try:
            found[name] = parse_toml(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = value
        except UserError as error:
            raise UserError(f"{word} {name}: {error}") from error
    return found
