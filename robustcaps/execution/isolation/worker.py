"""The client side of the worker process: sends it one cell at a time, enforces limits, and restarts it if needed."""

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
from typing import IO, Self

import pyarrow.parquet as pq
from pydantic import ValidationError

from robustcaps.data.base import Progress
from robustcaps.execution.execute_cell import Outcome, clip
from robustcaps.execution.isolation.protocol import END_OF_OUTPUT, Job, JobUpdate, decode_update, encode_job
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import RuntimeConfig

STARTUP_TIME_LIMIT = 600.0
"""Seconds for a worker process to import, load plugins, and prepare a cell's model and data."""
MAX_OUTPUT_BYTES = 1_000_000
"""What a cell may print."""
KEPT_OUTPUT_BYTES = 4_000
"""How much of the end of the output is kept."""
POLL_SECONDS = 0.1
"""Time between two checks of the limits."""
GRACE_SECONDS = 2.0
"""How long to wait for remaining output, and for threads to finish."""


class Worker:
    """Evaluates cells in a subprocess that is started on first use, reused, and replaced after it had to be killed."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self.process: _WorkerProcess | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="robustcaps-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            self.process.kill()
        self.folder.cleanup()

    def execute_cell(self, cell: Cell, limit: float, progress: Progress | None = None) -> Outcome | None:
        """Return the outcome of a cell; None if it needs what is only registered in this process."""
        self.process = process = self.process or _WorkerProcess()
        rows_path = Path(self.folder.name) / "rows.parquet"
        process.submit(Job(self.config, cell, rows_path))
        result = process.wait(limit, progress)
        if not process.is_reusable:
            process.kill()
            self.process = None
        if result.status == "finished":
            return Outcome(cell, result.seconds, pq.read_table(rows_path).to_pandas(), note=result.note)
        if result.status == "failed":
            trace = process.output.prepend_to(result.trace)
            return Outcome(cell, result.seconds, violation=result.violation, trace=trace)
        if cell.task.has_own_time_limit:
            problem = "time_limit: not supported for an attack, model or dataset that a script registers itself"
            return Outcome(cell, 0.0, violation="raised", trace=f"{problem}; move it to a plugin file.")
        return None


class _WorkerProcess:
    """The subprocess: its jobs, updates and output."""

    def __init__(self) -> None:
        # A session of its own, so that all its children can be killed with it and Ctrl-C reaches this process only.
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-m", "robustcaps.execution.isolation"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            start_new_session=True,
        )
        self.output = _CapturedOutput()
        self.updates: queue.Queue[JobUpdate] = queue.Queue()
        self.threads = [
            _read_in_thread(self._collect_updates, self.popen.stdout),
            _read_in_thread(self.output.collect, self.popen.stderr),
        ]

    @property
    def is_reusable(self) -> bool:
        """Whether the process is alive and has completed its job."""
        return self.popen.poll() is None and self.output.ended.is_set()

    def submit(self, job: Job) -> None:
        """Send a job."""
        self.output.clear()
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):  # `_collect_updates` reports a process that has died
                self.popen.stdin.write(encode_job(job))
                self.popen.stdin.flush()

    def wait(self, limit: float, progress: Progress | None) -> JobUpdate:
        """Report progress until the job ends or exceeds a limit, and return its final update."""
        started, allowed = time.monotonic(), STARTUP_TIME_LIMIT
        while True:
            update = self._next_update()
            seconds = time.monotonic() - started
            if update is not None and update.status not in ("ready", "progress"):
                self.output.ended.wait(GRACE_SECONDS)
                return self.output.overflow(seconds) or replace(update, seconds=update.seconds or seconds)
            if overflow := self.output.overflow(seconds):
                return overflow
            if seconds > allowed:
                return JobUpdate("failed", seconds, "timed-out", f"killed: exceeded its time limit of {allowed:g} s")
            if update is not None and update.status == "ready":
                started, allowed = time.monotonic(), limit
            elif update is not None and progress:
                progress(update.done, update.total)

    def kill(self) -> None:
        """Kill the process and its children, and wait until they are gone."""
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        else:
            tree = ["taskkill", "/F", "/T", "/PID", str(self.popen.pid)]
            subprocess.run(tree, capture_output=True, check=False)  # noqa: S603
        self.popen.wait()
        for thread in self.threads:
            thread.join(GRACE_SECONDS)

    def _next_update(self) -> JobUpdate | None:
        try:
            return self.updates.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return None

    def _collect_updates(self, stream: IO[bytes]) -> None:
        """Queue the updates of the process, and finally that it has exited."""
        for line in stream:
            with contextlib.suppress(ValidationError):  # a line cut off by a crash
                self.updates.put(decode_update(line))
        self.updates.put(JobUpdate("failed", violation="exited", trace=_describe_exit(self.popen.wait())))


class _CapturedOutput:
    """The output of the current job: its size so far, and its last bytes."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard the output of the previous job."""
        self.size = 0
        self.tail = b""
        self.ended = threading.Event()

    def collect(self, stream: IO[bytes]) -> None:
        """Read the output until the process closes it."""
        for chunk in iter(lambda: os.read(stream.fileno(), 1 << 16), b""):
            self.size += len(chunk)
            self.tail = (self.tail + chunk)[-KEPT_OUTPUT_BYTES - len(END_OF_OUTPUT) :]
            if self.tail.endswith(END_OF_OUTPUT):
                self.ended.set()
        self.ended.set()

    def overflow(self, seconds: float) -> JobUpdate | None:
        """Return the failure of a job that has printed too much, else None."""
        if self.size <= MAX_OUTPUT_BYTES + len(END_OF_OUTPUT):
            return None
        return JobUpdate("failed", seconds, "flooded-output", f"killed: printed more than {MAX_OUTPUT_BYTES:,} bytes")

    def prepend_to(self, trace: str) -> str:
        """Return a traceback preceded by the last output before it."""
        printed = clip(self.tail.removesuffix(END_OF_OUTPUT).decode(errors="replace")).strip()
        return f"Last output:\n{printed}\n\n{trace}" if printed else trace


def _read_in_thread(read: Callable[[IO[bytes]], None], stream: IO[bytes] | None) -> threading.Thread:
    """Start a thread that reads a stream to its end and closes it."""

    def run() -> None:
        if stream is not None:
            with stream:
                read(stream)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _describe_exit(code: int) -> str:
    """Return how a process ended."""
    if code < 0:
        return f"the worker process was killed by signal {signal.Signals(-code).name}"
    return f"the worker process exited with code {code}"
