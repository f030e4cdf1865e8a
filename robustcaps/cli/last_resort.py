"""What the command line does when all else fails: a log for unforeseen errors, and no silent exits."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from robustcaps.utils.versions import package_versions

PACKAGES = ("robustcaps", "torch", "numpy", "pandas", "pyarrow", "typer")


def write_error_log(error: BaseException) -> Path | str:
    """Write the traceback of an error, the command and the versions to a new file; return its path."""
    versions = " ".join(f"{name} {version}" for name, version in package_versions(PACKAGES).items())
    text = f"{shlex.join(sys.argv)}\n{versions}\n\n{''.join(traceback.format_exception(error))}"
    try:
        handle, name = tempfile.mkstemp(prefix="robustcaps-error-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as problem:
        return f"no file ({problem.strerror})"
    return Path(name)


@contextmanager
def guarded_process() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, and make `os._exit(0)` of a plugin a failure, which would pass for success.

    Processes that are forked from this one, as data loaders are, end as they like.
    """
    exit_now, process = os._exit, os.getpid()

    def exit_loudly(status: int = 0) -> NoReturn:
        if os.getpid() == process:
            os.write(2, b"failed: a plugin ended the process with os._exit.\n")
            exit_now(status or 1)
        exit_now(status)

    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
    os._exit = exit_loudly
    try:
        yield
    finally:
        os._exit = exit_now
        if is_main:
            signal.signal(signal.SIGTERM, previous)
