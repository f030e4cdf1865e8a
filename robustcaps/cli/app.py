"""The command line: every command parses its arguments, calls the API and prints; heavy imports come last."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from robustcaps.cli.commands import (
    attack,
    compare,
    data,
    diagnose,
    import_weights,
    inspect,
    listing,
    new,
    results,
    run,
    train,
)
from robustcaps.cli.escaping import escape
from robustcaps.cli.last_resort import guarded_process, write_error_log
from robustcaps.errors import PluginFailed, UserError, describe_error

app = typer.Typer(
    help="How robust are capsule networks against adversarial attacks, honestly, beside matched CNNs.",
    epilog="Start with: robustcaps run quick",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for commands in (run, listing, attack, diagnose, train, import_weights, inspect, results, compare, data, new):
    commands.register(app)

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""
RESUMABLE = ("run", "train", "data")
"""Commands that continue where they were interrupted."""


def main() -> None:
    """Run the command line: every error is one line on stderr; exit code 2 is a user's mistake, 1 work that failed."""
    try:
        with guarded_process():
            app()
    except (UserError, OSError) as error:
        _exit(f"[red]error[/]: {escape(str(error))}", WRONG_USAGE)
    except PluginFailed as error:
        _exit(f"[red]failed[/]: {escape(str(error))}", FAILED)
    except KeyboardInterrupt:
        _exit(_how_to_go_on(), INTERRUPTED)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # typer's own word for Ctrl-C
            _exit(_how_to_go_on(), INTERRUPTED)
        raise
    except BaseException as error:  # noqa: BLE001  nobody is helped by a traceback on the terminal
        path = write_error_log(error)
        text = f"unexpected {describe_error(error)}. The traceback is in {path}; please report it as a bug."
        _exit(f"[red]error[/]: {escape(text)}", FAILED)


def _how_to_go_on() -> str:
    if any(word in sys.argv[1:2] for word in RESUMABLE):
        return "interrupted. The same command continues where it stopped."
    return "interrupted. Enter the same command to start again."


def _exit(message: str, code: int) -> None:
    Console(stderr=True, emoji=False).print(message, soft_wrap=True, highlight=False)
    sys.exit(code)
