"""The command line: every command parses its arguments, calls the API and prints; heavy imports come last."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from robustcaps.cli.commands import attack, data, diagnose, import_weights, inspect, listing, new, results, run, train
from robustcaps.errors import PluginFailed, UserError

app = typer.Typer(
    help="How robust are capsule networks against adversarial attacks, honestly, beside matched CNNs.",
    epilog="Start with: robustcaps run benchmarks/quick.toml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for commands in (run, listing, attack, diagnose, train, import_weights, inspect, results, data, new):
    commands.register(app)

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2, a plugin's failure exit code 1."""
    try:
        app()
    except (UserError, OSError) as error:
        _exit(f"[red]error[/]: {escape(str(error))}", WRONG_USAGE)
    except PluginFailed as error:
        _exit(f"[red]failed[/]: {escape(str(error))}", FAILED)
    except KeyboardInterrupt:
        _exit("interrupted. The same command continues where it stopped.", INTERRUPTED)


def _exit(message: str, code: int) -> None:
    Console(stderr=True, emoji=False).print(message, soft_wrap=True, highlight=False)
    sys.exit(code)
