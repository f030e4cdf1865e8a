"""Execute one cell, or a shard of it: it gives rows, or a named failure that does not affect other cells."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from robustcaps.attacks.violations import Violation
from robustcaps.data.base import Progress
from robustcaps.registry import ATTACKS
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.shard import Shard
from robustcaps.utils.spans import Span

MAX_LINE_LENGTH, MAX_LINES = 500, 200
"""What is kept of a traceback: an exception may carry megabytes."""


@dataclass(frozen=True)
class Outcome:
    """The result of a cell: its rows, or the name and the traceback of its failure."""

    cell: Cell
    seconds: float
    rows: pd.DataFrame | None = None
    violation: str = ""
    """One of `violations.CELL_VIOLATIONS`, '' for a cell with rows."""
    trace: str = ""
    note: str = ""
    """What a user should know about a cell with rows."""
    samples: Span | None = None
    """The samples of the shard that it is the result of; None stands for the whole cell."""

    @property
    def shard(self) -> Shard:
        """What was executed."""
        return Shard(self.cell, self.samples)

    @property
    def reason(self) -> str:
        """The last line of the trace."""
        return self.trace.strip().rpartition("\n")[2]


def execute_cell(
    cell: Cell,
    resolver: Resolver,
    progress: Progress | None = None,
    *,
    samples: Span | None = None,
    ready: Callable[[], None] | None = None,
) -> Outcome:
    """Execute one cell, or some samples of it; a failure becomes an outcome, so that the other cells go on.

    `ready` is called when model, data and attack are built; the time is measured from then on.
    """
    notes: list[str] = []
    began = time.perf_counter()
    try:
        compute = cell.prepare(resolver, samples)
        if ready:
            ready()
        began = time.perf_counter()
        rows = compute(progress, notes.append)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  whatever a plugin raises belongs to its cell
        trace = clip("".join(traceback.format_exception(error)))
        seconds = time.perf_counter() - began
        return Outcome(cell, seconds, violation=failure_name(error), trace=trace, samples=samples)
    return Outcome(cell, time.perf_counter() - began, rows, note="; ".join(notes), samples=samples)


def failure_name(error: BaseException) -> str:
    """Return the violation that an exception stands for."""
    return Violation.EXITED if isinstance(error, SystemExit) else Violation.RAISED


def clip(text: str) -> str:
    """Return the last lines of a text, long ones cut, without characters that a file or terminal may refuse."""
    lines = text.encode(errors="backslashreplace").decode().splitlines()[-MAX_LINES:]
    return "\n".join(line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]}..." for line in lines)


def explain(error: BaseException, attack: str) -> str:
    """Return in one line how a plugin's attack failed: attack 'mine' raised ValueError: no (mine.py:12)."""
    home = inspect.getmodule(ATTACKS.entry(attack).factory)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if home is not None and frame.filename == home.__file__] or frames
    what = clip(traceback.format_exception_only(error)[-1].strip().partition("\n")[0])
    return f"attack '{attack}' {failure_name(error)} {what} ({Path(own[-1].filename).name}:{own[-1].lineno})"
