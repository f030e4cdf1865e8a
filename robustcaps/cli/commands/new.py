"""robustcaps new: files to start a plugin from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import console, examples


def register(app: typer.Typer) -> None:
    """Add the commands."""
    new = typer.Typer(help="Write the files of a new plugin.", no_args_is_help=True)
    new.command("attack", epilog=examples("robustcaps new attack my-attack"))(attack)
    app.add_typer(new, name="new")


def attack(
    name: Annotated[str, typer.Argument(help="The name of the attack, e.g. my-attack.")],
    folder: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path(),
) -> None:
    """Write a working attack and a test for it, as a start for your own."""
    from robustcaps.cli.rendering import show_commands, show_files
    from robustcaps.cli.scaffold import write_attack

    plugin, test = write_attack(name, folder)
    show_files(console, [plugin, test])
    calls = [f"robustcaps attack cnn-small {name} --plugin {plugin}", f"python -m pytest {test}"]
    show_commands(console, "Try them:", calls)
