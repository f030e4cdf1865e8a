"""Attacks as options of other attacks: a name, or a table with `use` and options, as in a suite."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from robustcaps.attacks.base import TRANSFORMATIONS, Attack
from robustcaps.errors import UserError
from robustcaps.options import validate_options
from robustcaps.registry import ATTACKS

InnerAttack = Annotated[
    str | dict[str, Any], Field(description="name of an attack, or a table { use = name, options ... }")
]


def build_inner_attack(inner: str | dict[str, Any], **defaults: Any) -> Attack:
    """Return the attack that an option describes; `defaults` replace those of its own options that are not set."""
    content = {"use": inner} if isinstance(inner, str) else dict(inner)
    name = content.pop("use", None)
    if not isinstance(name, str):
        raise UserError(f"attack: missing name ('use = ...') in {inner!r}.")
    factory = ATTACKS.entry(name).factory
    options = validate_options(factory, content, where=f"attack '{name}'")
    options |= {key: value for key, value in defaults.items() if key in options and key not in content}
    attack = factory(**options)
    if attack.default_norm in TRANSFORMATIONS:
        raise UserError(f"attack '{name}': moves objects instead of pixels, so it cannot be part of another attack.")
    attack.name, attack.settings = name, {"name": name, "options": options}
    return attack
