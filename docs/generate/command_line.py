"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from rich.text import Text

from docs.generate.markdown import code, plain, table
from robustcaps.cli.app import app


def command_line() -> str:
    """Return a section per command: usage, arguments, options and examples."""
    group = typer.main.get_command(app)
    return "\n".join(part for name, command in _commands(group, "robustcaps") for part in _section(name, command))


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        full = f"{prefix} {name}"
        yield from _commands(command, full) if hasattr(command, "commands") else [(full, command)]


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and "--help" not in each.opts]
    usage = " ".join([name, *(_placeholder(each) for each in arguments), "[OPTIONS]" if options else ""]).rstrip()
    yield f"## {name}\n"
    yield f"{plain(command.help or '')}\n"
    yield f"```text\n{usage}\n```\n"
    if arguments:
        rows = [[code(_placeholder(each)), plain(each.help or ""), _default(each)] for each in arguments]
        yield table(["argument", "meaning", "default"], rows)
    if options:
        rows = [[code(_flags(each)), plain(each.help or ""), _default(each)] for each in options]
        yield table(["option", "meaning", "default"], rows)
    examples = [line.strip() for line in Text.from_markup(command.epilog or "").plain.splitlines()]
    if lines := [line for line in examples if line.startswith("robustcaps ")]:
        yield "```text\n" + "\n".join(lines) + "\n```\n"


def _placeholder(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper().strip("[]")
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    names = " / ".join([*option.opts, *option.secondary_opts])
    takes_value = not option.is_flag and not option.secondary_opts
    return f"{names} {option.metavar or option.name.upper()}" if takes_value else names


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", True)
    variable = f" or {code(parameter.envvar)}" if parameter.envvar else ""
    if isinstance(shown, str):
        return code(shown) + variable
    hidden = parameter.default in (None, False, ()) or callable(parameter.default)
    return "" if hidden else code(parameter.default)
