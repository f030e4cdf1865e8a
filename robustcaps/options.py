"""Options of registered factories, validated against the factory's signature, the only place that declares them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from robustcaps.errors import UserError, did_you_mean

MAX_SEED = 2**31 - 1
MAX_COUNT = 10**9
"""The largest number of samples, queries or images of a batch."""
MAX_SHOWN = 80
"""Characters of a wrong value that a message shows."""

Views = Literal["all", "familiar-azimuths", "novel-azimuths", "familiar-elevations", "novel-elevations"]
"""Viewpoints of a dataset, where it records them."""
NormName = Literal["linf", "l2", "l1", "l0", "affine", "viewpoint"]
"""What bounds an attack: a norm of the perturbation, or ranges of affine maps or viewpoints."""
Unit = Literal["pixel", "std", "count", "degrees"]
"""What eps counts: the pixel range [0,1], standard deviations of the image, changed values, or degrees."""


def validate_options(
    factory: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    where: str,
    reserved: frozenset[str] = frozenset(),
    known: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return all options of a factory, defaults filled in.

    `reserved` parameters are passed by the caller itself; `known` are other names that a misspelt option may mean.
    """
    schema = options_schema(factory, reserved)
    for name in options:
        if name not in schema.model_fields:
            raise UserError(f"{where}: unknown option '{name}'. {did_you_mean(name, (*schema.model_fields, *known))}")
    try:
        checked = schema.model_validate(dict(options))
    except ValidationError as error:
        raise UserError(f"{where}: {first_problem(error)}") from error
    return {name: getattr(checked, name) for name in schema.model_fields}


@functools.cache
def options_schema(factory: Callable[..., Any], reserved: frozenset[str] = frozenset()) -> type[BaseModel]:
    """Return the pydantic model of a factory's keyword-only parameters."""
    declared = factory.__init__ if inspect.isclass(factory) else factory
    hints = typing.get_type_hints(declared, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(factory).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.name in reserved:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return create_model(getattr(factory, "__name__", "options"), __config__=config, **fields)


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a validation as one line: where, what, and the value."""
    problem = error.errors(include_url=False)[0]
    place = ""
    for part in problem["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    value = problem["input"]
    is_shown = not isinstance(value, (dict, BaseModel)) and problem["type"] != "missing"
    shown = f" (given: {_clipped(value)})" if is_shown else ""
    return f"{place.lstrip('.')}: {text}{shown}" if place else f"{text}{shown}"


def _clipped(value: object) -> str:
    """Return a value as text of limited length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, or nested too deeply
        return f"a very large {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
