"""Attacks that are options of other attacks: a name, or a table with `use` and its options, as in a suite."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from robustcaps.attacks.base import Attack
from robustcaps.errors import UserError
from robustcaps.options import validate_options
from robustcaps.registry import ATTACKS

Inner = Annotated[str | dict[str, Any], Field(description="an attack's name, or { use = name, its options }")]


def build_inner(inner: str | dict[str, Any], **wanted: Any) -> Attack:
    """Return the attack that an option describes; `wanted` are options it gets if it has them and none are said."""
    content = {"use": inner} if isinstance(inner, str) else dict(inner)
    name = content.pop("use", None)
    if not isinstance(name, str):
        raise UserError(f"attack: needs a name, 'use = ...', in {inner!r}.")
    factory = ATTACKS.entry(name).factory
    resolved = validate_options(factory, content, where=f"attack '{name}'")
    resolved |= {key: value for key, value in wanted.items() if key in resolved and key not in content}
    made = factory(**resolved)
    made.name, made.settings = name, {"name": name, "options": resolved}
    return made
