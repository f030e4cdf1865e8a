"""The worker as a run sees it: asked for one cell after another, watched, and replaced when it had to be stopped."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow.parquet as pq
from pydantic import ValidationError

from robustcaps.data.base import Progress
from robustcaps.execution.execute_cell import Outcome, clip
from robustcaps.execution.isolation.protocol import MARK, Job, News, job_line, read_news
from robustcaps.suite.plan import Cell
from robustcaps.suite.resolve import RuntimeConfig

PLUGIN_LIMIT = 3600.0
"""Seconds that a cell of a plugin's attack may take if its suite says nothing else."""
PREPARATION = 600.0
"""Seconds that a worker may take to import, to load plugins, and to make a cell's model and data."""
FLOOD = 1_000_000
"""Bytes that a cell may print."""
KEPT = 4_000
"""Bytes of what it printed that are kept, from the end."""
GLANCE, PATIENCE = 0.1, 2.0
"""Seconds between two looks at the clock; seconds to wait for the rest of what has come to its end."""


def time_limit(cell: Cell) -> float | None:
    """Return how many seconds a cell may take in a worker; None: as long as it likes, in the run's own process."""
    default = PLUGIN_LIMIT if _has_plugin(cell.settings["attack"]) else None
    return cell.attack.time_limit or default


def _has_plugin(settings: dict[str, Any]) -> bool:
    """Return whether an attack, or one that it is made of, is a plugin: its settings name the plugin's code."""
    return "code" in settings or any(_has_plugin(part) for part in settings.get("parts", ()))


class Worker:
    """One process for all cells that need one: started when first asked, and anew after it had to be stopped."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.process: _Process | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="robustcaps-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.process.stop()
        self.folder.cleanup()

    def execute_cell(self, cell: Cell, limit: float, progress: Progress | None = None) -> Outcome | None:
        """Return what became of a cell; None if it rests on what only the script that started the run registered."""
        self.process = process = self.process or _Process()
        rows = Path(self.folder.name) / "rows.parquet"
        process.ask(Job(self.config, cell, rows))
        ending = process.follow(limit, progress)
        if not process.usable:
            process.stop()
            self.process = None
        if ending.what == "finished":
            return Outcome(cell, ending.seconds, pq.read_table(rows).to_pandas())
        if ending.what == "failed":
            trace = process.output.before(ending.trace)
            return Outcome(cell, ending.seconds, violation=ending.violation, trace=trace)
        if cell.attack.time_limit is not None:
            problem = "time_limit: cannot be kept where a script registers an attack, a model or data by itself"
            return Outcome(cell, 0.0, violation="raised", trace=f"{problem}; put them in a plugin file.")
        return None


class _Process:
    """A worker's process: its jobs, its news, its output."""

    def __init__(self) -> None:
        # In a session of its own it can be stopped with all it has started, and Ctrl-C is left to us.
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-m", "robustcaps.execution.isolation"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            start_new_session=True,
        )
        self.output = _Output()
        self.news: queue.Queue[News] = queue.Queue()
        self.threads = [_start(self._listen, self.popen.stdout), _start(self.output.drain, self.popen.stderr)]

    @property
    def usable(self) -> bool:
        """Whether it lives and is done with its job."""
        return self.popen.poll() is None and self.output.ended.is_set()

    def ask(self, job: Job) -> None:
        """Hand a job over."""
        self.output.clear()
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):  # that it has died is heard from `_listen`
                self.popen.stdin.write(job_line(job))
                self.popen.stdin.flush()

    def follow(self, limit: float, progress: Progress | None) -> News:
        """Pass progress on until the job has ended or must be stopped, and return how it ended."""
        began, allowed = time.monotonic(), PREPARATION
        while True:
            news = self._next_news()
            seconds = time.monotonic() - began
            if news is not None and news.what not in ("ready", "moved"):
                self.output.ended.wait(PATIENCE)
                return self.output.flooded(seconds) or replace(news, seconds=news.seconds or seconds)
            if flooded := self.output.flooded(seconds):
                return flooded
            if seconds > allowed:
                return News("failed", seconds, "timed-out", f"stopped: it did not end within {allowed:g} s")
            if news is not None and news.what == "ready":
                began, allowed = time.monotonic(), limit
            elif news is not None and progress:
                progress(news.done, news.total)

    def stop(self) -> None:
        """Kill it with all it has started, and wait until nothing of it is left."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        else:
            tree = ["taskkill", "/F", "/T", "/PID", str(self.popen.pid)]
            subprocess.run(tree, capture_output=True, check=False)  # noqa: S603
        self.popen.wait()
        for thread in self.threads:
            thread.join(PATIENCE)

    def _next_news(self) -> News | None:
        try:
            return self.news.get(timeout=GLANCE)
        except queue.Empty:
            return None

    def _listen(self, stream: IO[bytes]) -> None:
        """Collect what the worker says, and at last that it has ended."""
        for line in stream:
            with contextlib.suppress(ValidationError):  # a line it died over
                self.news.put(read_news(line))
        self.news.put(News("failed", violation="exited", trace=_farewell(self.popen.wait())))


class _Output:
    """What a worker prints, drained: how much of it its job has printed so far, and the end of it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what was printed, before the next job."""
        self.size = 0
        self.tail = b""
        self.ended = threading.Event()

    def drain(self, stream: IO[bytes]) -> None:
        """Read all there is, for as long as there is any."""
        for chunk in iter(lambda: os.read(stream.fileno(), 1 << 16), b""):
            self.size += len(chunk)
            self.tail = (self.tail + chunk)[-KEPT - len(MARK) :]
            if self.tail.endswith(MARK):
                self.ended.set()
        self.ended.set()

    def flooded(self, seconds: float) -> News | None:
        """Return the failure of a job that has printed too much, else None."""
        if self.size <= FLOOD + len(MARK):
            return None
        return News("failed", seconds, "flooded-output", f"stopped: it printed more than {FLOOD:,} bytes")

    def before(self, trace: str) -> str:
        """Return a failure's trace with the end of what was printed before it."""
        printed = clip(self.tail.removesuffix(MARK).decode(errors="replace")).strip()
        return f"What it printed, from its end:\n{printed}\n\n{trace}" if printed else trace


def _start(work: Callable[[IO[bytes]], None], stream: IO[bytes] | None) -> threading.Thread:
    """Let a thread work on a stream to its end, then close it."""

    def run() -> None:
        if stream is not None:
            with stream:
                work(stream)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _farewell(code: int) -> str:
    """Say how a process ended."""
    if code < 0:
        return f"its process was killed by signal {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
