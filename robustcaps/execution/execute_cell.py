"""Execute one cell: it gives rows, or a named failure that does not affect other cells."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from robustcaps.attacks.violations import Violation
from robustcaps.data.base import Progress
from robustcaps.registry import ATTACKS
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import Resolver
from robustcaps.utils.devices import free_memory, is_out_of_memory

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

    @property
    def reason(self) -> str:
        """The last line of the trace."""
        return self.trace.strip().rpartition("\n")[2]


def execute_cell(
    cell: Cell, resolver: Resolver, progress: Progress | None = None, *, ready: Callable[[], None] | None = None
) -> Outcome:
    """Execute one cell; a failure becomes an outcome, not an exception, so that the other cells go on.

    A cell that runs out of memory is tried again with half the batch size, which its rows do not depend on.
    `ready` is called when model, data and attack are built; the time is measured from then on.
    """
    task, note = cell.task, ""
    while True:
        outcome, has_memory = _try_cell(replace(cell, task=task), resolver, progress, ready)
        smaller = None if has_memory else task.with_smaller_batches()
        if smaller is None:
            return replace(outcome, cell=cell, note=note)
        free_memory()
        note = f"ran out of memory; computed with a batch size of {smaller.batch_size}"
        task = smaller


def _try_cell(
    cell: Cell, resolver: Resolver, progress: Progress | None, ready: Callable[[], None] | None
) -> tuple[Outcome, bool]:
    """Execute one cell once; return its outcome and whether there was enough memory."""
    began = time.perf_counter()
    try:
        compute = cell.prepare(resolver)
        if ready:
            ready()
        began = time.perf_counter()
        rows = compute(progress)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  whatever a plugin raises belongs to its cell
        trace = clip("".join(traceback.format_exception(error)))
        outcome = Outcome(cell, time.perf_counter() - began, violation=failure_name(error), trace=trace)
        return outcome, not is_out_of_memory(error)
    return Outcome(cell, time.perf_counter() - began, rows), True


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
