"""What becomes of a cell: rows, or a failure with a name that leaves the other cells alone."""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from robustcaps.attacks.evaluation import evaluate
from robustcaps.data.base import Progress
from robustcaps.diagnostics.kinds.registry import EXAMINATIONS, examination_options
from robustcaps.registry import ATTACKS
from robustcaps.suite.plan import Cell, Work
from robustcaps.suite.questions import Question
from robustcaps.suite.resolve import Resolver

LONGEST_LINE, MOST_LINES = 500, 200
"""What is kept of a traceback; an exception may say megabytes."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its rows, or the name and the trace of its failure."""

    cell: Work
    seconds: float
    rows: pd.DataFrame | None = None
    violation: str = ""
    """A name of `violations.IN_CELLS`, '' for a cell with rows."""
    trace: str = ""

    @property
    def reason(self) -> str:
        """The last line of the trace."""
        return self.trace.strip().rpartition("\n")[2]


def execute_cell(
    cell: Work, resolver: Resolver, progress: Progress | None = None, *, ready: Callable[[], None] | None = None
) -> Outcome:
    """Evaluate one cell; a failure becomes an outcome, not an exception, so that the other cells go on.

    `ready` is called when model, data and attack are there, and the seconds count from then on.
    """
    began = time.perf_counter()
    try:
        compute = _prepare(cell, resolver) if isinstance(cell, Cell) else _prepare_question(cell, resolver)
        if ready:
            ready()
        began = time.perf_counter()
        rows = compute(progress)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a plugin raises belongs to its cell
        trace = clip("".join(traceback.format_exception(error)))
        return Outcome(cell, time.perf_counter() - began, violation=failure_name(error), trace=trace)
    return Outcome(cell, time.perf_counter() - began, rows)


Compute = Callable[[Progress | None], pd.DataFrame]


def _prepare(cell: Cell, resolver: Resolver) -> Compute:
    """Make what a cell needs; return its evaluation."""
    things = resolver.model(cell.model, cell.data), resolver.data(cell.data), resolver.attack(cell.attack)
    surrogates = {name: resolver.model(spec, cell.data) for name, spec in cell.surrogates.items()}
    how = {"seed": cell.seed, "batch_size": cell.batch_size, "surrogate": surrogates.__getitem__}
    return lambda progress: evaluate(*things, **how, progress=progress)  # type: ignore[arg-type]


def _prepare_question(question: Question, resolver: Resolver) -> Compute:
    """Make what a question is about; return its examination."""
    spec = question.diagnostic
    model, data = resolver.model(question.model, question.data), resolver.data(question.data).first(spec.limit)
    options = examination_options(spec.use, spec.options)
    how = {"eps": question.eps, "norm": spec.norm, "seed": question.seed, **options}
    return lambda progress: EXAMINATIONS[question.kind](model, data, **how, progress=progress)


def failure_name(error: BaseException) -> str:
    """Return the name of what an attack did that raised this."""
    return "exited" if isinstance(error, SystemExit) else "raised"


def clip(text: str) -> str:
    """Return the last lines of a text, long ones cut, as what any file or terminal can take."""
    lines = text.encode(errors="backslashreplace").decode().splitlines()[-MOST_LINES:]
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in lines)


def explain(error: BaseException, attack: str) -> str:
    """Say in one line what a plugin's attack did, and where: attack 'mine' raised ValueError: no (mine.py:12)."""
    home = inspect.getmodule(ATTACKS.entry(attack).factory)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if home is not None and frame.filename == home.__file__] or frames
    what = clip(traceback.format_exception_only(error)[-1].strip().partition("\n")[0])
    return f"attack '{attack}' {failure_name(error)} {what} ({Path(own[-1].filename).name}:{own[-1].lineno})"
