"""The command line in a process of its own that is forked from one with the libraries loaded: a start takes no time."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("torch", "pandas", "pyarrow.parquet", "scipy.stats", "seaborn", "altair", "numba", "typer", "rich.console")
"""What takes long to import; the package itself is imported anew in each process."""

LIMIT = 240
"""Seconds that a command may take."""


def call(words: tuple[str, ...], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `robustcaps WORDS` in a folder and return its exit code and what it printed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    with_streams = (folder.parent / f".{folder.name}.stdout", folder.parent / f".{folder.name}.stderr")
    process = context.Process(target=_main, args=(words, folder, environment, with_streams))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        raise subprocess.TimeoutExpired(list(words), LIMIT)
    output, errors = (path.read_text() for path in with_streams)
    return subprocess.CompletedProcess(["robustcaps", *words], process.exitcode, output, errors)


def _main(words: tuple[str, ...], folder: Path, environment: dict[str, str], streams: tuple[Path, Path]) -> None:
    for descriptor, path in enumerate(streams, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["robustcaps", *words]
    sys.path.insert(0, "")

    from robustcaps.cli.app import main  # noqa: PLC0415  # with the environment of the command, and not before

    main()
