"""Every key of a suite file, read from the pydantic models that validate it."""

from __future__ import annotations

import inspect
import types
import typing
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sphinx.pycode import ModuleAnalyzer

from docs.generate.markdown import code, plain, table
from robustcaps.suite.spec import (
    AttackSpec,
    Collection,
    DataSpec,
    DiagnosticSpec,
    FigureSpec,
    ModelSpec,
    ResourceSpec,
    Suite,
    TrainSpec,
)

TABLES: dict[str, type[BaseModel]] = {
    "The suite itself": Suite,
    "`[[data]]`": DataSpec,
    "`[[models]]`": ModelSpec,
    "`train = { ... }` of a model": TrainSpec,
    "`[[attacks]]`": AttackSpec,
    "`[[diagnostics]]`": DiagnosticSpec,
    "`[figures]`": FigureSpec,
    "`[resources]`": ResourceSpec,
    "A collection": Collection,
}
NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", dict: "table"}


def suite_keys() -> str:
    """Return a section per table of a suite file: key, type, default and meaning."""
    parts = []
    for title, model in TABLES.items():
        rows = [[code(name), *_described(model, name, field)] for name, field in model.model_fields.items()]
        parts += [f"### {title}", "", table(["key", "type", "default", "meaning"], rows)]
    return "\n".join(parts)


def _described(model: type[BaseModel], name: str, field: FieldInfo) -> tuple[str, str, str]:
    """Return type, default and meaning of a key."""
    default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
    return plain(type_name(_hint(model, name))), default, plain(meaning(model, name))


def _hint(model: type[BaseModel], name: str) -> Any:
    hints = [
        typing.get_type_hints(owner, include_extras=True) for owner in model.__mro__ if issubclass(owner, BaseModel)
    ]
    return next(found[name] for found in hints if name in found)


def _default(value: Any) -> str:
    if value is None or value == "" or isinstance(value, BaseModel):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"'))


def meaning(model: type[BaseModel], name: str) -> str:
    """Return what a key means: the description of the field, or the docstring below it."""
    if text := model.model_fields[name].description:
        return text
    for owner in model.__mro__:
        if name in vars(owner).get("__annotations__", {}):
            docs = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
            return inspect.cleandoc("\n".join(docs.get((owner.__name__, name), []))).replace("\n", " ").strip()
    return ""


def type_name(hint: Any) -> str:
    """Return a type in words: "integer", "one of linf, l2", "list of text"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(each) for each in arguments if each is not type(None))
    if origin is list:
        inner = arguments[0]
        is_table = inspect.isclass(inner) and issubclass(inner, BaseModel)
        return "tables" if is_table else f"list of {type_name(inner)}"
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        return "table"
    return NAMES.get(hint, "path" if getattr(hint, "__name__", "") == "Path" else str(hint))
