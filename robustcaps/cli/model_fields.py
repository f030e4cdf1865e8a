"""Command-line options generated from the fields of a pydantic model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Command = TypeVar("Command", bound=Callable[..., None])


def options_of(model: type[BaseModel], *, panel: str) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's `**kwargs` by one option for each field of a model.

    Args:
        model: Its field descriptions, bounds and defaults are those of the options.
        panel: The title of their panel in the help.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = [_parameter(name, field, panel) for name, field in model.model_fields.items()]
        command.__signature__ = signature.replace(parameters=[*own, *fields])  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in (*own, *fields)}
        return command

    return decorate


def _parameter(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    """Return the keyword parameter that typer turns into the option of a field."""
    bounds: dict[str, Any] = {}
    for constraint in field.metadata:
        if isinstance(constraint, Ge):
            bounds["min"] = constraint.ge
        elif isinstance(constraint, Le):
            bounds["max"] = constraint.le
    option = typer.Option(help=field.description, rich_help_panel=panel, **bounds)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=field.default, annotation=Annotated[field.annotation, option])
