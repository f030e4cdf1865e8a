"""What a kind of diagnostic declares: how its rows are measured, what they cost, and how they are shown.

A kind is one file: it builds a `DiagnosticKind` and registers it. Plans, results, figures, the report and the console
loop over the registry, so nothing else has to know its name. Kind files import no torch: `measure` is named as
'module:function' and imported when a cell is executed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from robustcaps.options import validate_options
from robustcaps.registry import KINDS, Registry
from robustcaps.utils.grid import Grid, Section, make_grid, number

if TYPE_CHECKING:
    from altair import TopLevelMixin
    from matplotlib.figure import Figure

HARNESS_PARAMETERS = frozenset({"eps", "norm", "seed", "progress"})
"""Parameters of `measure` that the harness fills in; all other keyword-only ones are options of the diagnostic."""

ModelRecords = Sequence[Mapping[str, Any]]
"""What run.json says about the models of a run."""
Options = Mapping[str, Any]
Tables = Mapping[str, pd.DataFrame]
Statuses = Mapping[tuple[str, str], str]
"""What was found of each (dataset, model), in a word or two."""


def _unchanged(rows: pd.DataFrame, _: ModelRecords) -> pd.DataFrame:
    return rows


def plain_grids(table: pd.DataFrame) -> list[Grid]:
    """Return a table as one grid, all columns as they are."""
    numeric = [str(name) for name in table.select_dtypes("number").columns]
    rows = [
        [number(value, ".4g") if str(name) in numeric else str(value) for name, value in line.items()]
        for line in table.to_dict("records")
    ]
    return [make_grid([str(name) for name in table.columns], rows, numeric=numeric)]


@dataclass(frozen=True)
class KindTable:
    """A table made from the rows of a kind; it is written as `name`.csv and `name`.md."""

    name: str
    tabulate: Callable[[pd.DataFrame, ModelRecords], pd.DataFrame] = _unchanged
    """Rows of all cells of the kind, and the records of the models, to one line per result."""
    grids: Callable[[pd.DataFrame], list[Grid]] = plain_grids
    """The table for readers: Markdown, console and report."""


def _no_figures(_rows: pd.DataFrame, _tables: Tables) -> Iterator[tuple[str, Figure]]:
    yield from ()


def _no_statuses(_tables: Tables, _models: ModelRecords) -> Statuses:
    return {}


def _no_finding(_tables: Tables) -> str:
    return ""


def _no_charts(_rows: pd.DataFrame, _tables: Tables) -> Iterator[tuple[str, str, TopLevelMixin]]:
    yield from ()


def _nothing(_options: Options) -> None:
    """Accept any options."""


def _no_parts(_options: Options) -> Iterable[tuple[Registry[Any], str]]:
    return ()


@dataclass(frozen=True)
class DiagnosticKind:
    """A kind of diagnostic; suites ask for it with `use = NAME` under [[diagnostics]]."""

    name: str
    measure: str | Callable[..., pd.DataFrame]
    """(model, data, *, options...) -> rows; 'module:function' is imported when needed.

    It is passed eps, norm, seed and progress only if its signature names them.
    """
    tables: tuple[KindTable, ...]
    title: str
    """The heading of its section in the report."""
    note: str = ""
    """What its numbers mean, in the report."""
    draw: Callable[[pd.DataFrame, Tables], Iterator[tuple[str, Figure]]] = _no_figures
    """Yield (name, figure) from the rows and the tables by name."""
    charts: Callable[[pd.DataFrame, Tables], Iterator[tuple[str, str, TopLevelMixin]]] = _no_charts
    """Yield (name, caption, Altair chart) for its section of the report."""
    section: Callable[[pd.DataFrame, Tables], Section] | None = None
    """The section of the report, where the tables alone are not enough."""
    statuses: Callable[[Tables, ModelRecords], Statuses] = _no_statuses
    """Tables by name, and the records of the models, to the kind's column in the ranking of models."""
    finding: Callable[[Tables], str] = _no_finding
    """Tables by name to what a reader must know first: a sentence with figures, intervals and a test; '' if nothing."""
    passes: float = 1.0
    """About how many forward passes a sample takes, at each eps."""
    check_options: Callable[[Options], None] = _nothing
    """Raise a `UserError` for options that only the kind itself can judge."""
    parts: Callable[[Options], Iterable[tuple[Registry[Any], str]]] = _no_parts
    """The registered checks and attacks that it runs: their code decides its rows, too."""

    @property
    def measure_function(self) -> Callable[..., pd.DataFrame]:
        """The function that measures the rows, imported."""
        if not isinstance(self.measure, str):
            return self.measure
        module, _, name = self.measure.partition(":")
        function: Callable[..., pd.DataFrame] = getattr(importlib.import_module(module), name)
        return function

    @property
    def modules(self) -> tuple[str, ...]:
        """The module that measures the rows."""
        return (self.measure_function.__module__,)

    @property
    def harness_parameters(self) -> frozenset[str]:
        """Which of eps, norm, seed and progress the measurement takes."""
        return HARNESS_PARAMETERS & inspect.signature(self.measure_function).parameters.keys()

    def options(self, options: Options, *, where: str) -> dict[str, Any]:
        """Return all options of the kind, validated, defaults filled in."""
        checked = validate_options(self.measure_function, options, where=where, reserved=HARNESS_PARAMETERS)
        self.check_options(checked)
        return checked

    def tabulate(self, rows: pd.DataFrame, models: ModelRecords) -> dict[str, pd.DataFrame]:
        """Return the tables of the kind by name; empty ones where there are no rows."""
        return {table.name: rows if rows.empty else table.tabulate(rows, models) for table in self.tables}

    def report_section(self, rows: pd.DataFrame, tables: Tables) -> Section:
        """Return the kind's section of the report."""
        if self.section is not None:
            return self.section(rows, tables)
        grids = [grid for table in self.tables for grid in table.grids(tables[table.name])]
        return Section(self.title, self.note, grids)


def diagnostic_kind(kind: DiagnosticKind) -> DiagnosticKind:
    """Register a kind of diagnostic, so that suites can ask for it and results show it.

    Example:
        rc.diagnostic_kind(rc.DiagnosticKind("brightness", measure_brightness, (rc.KindTable("brightness"),), "..."))
    """
    source = kind.measure.partition(":")[0] if isinstance(kind.measure, str) else kind.measure.__module__
    KINDS.add(kind.name, lambda: kind, source=source)
    return kind


def all_kinds() -> list[DiagnosticKind]:
    """Return every registered kind, the built-in ones first, each in the order of registration."""
    return [KINDS.entry(name).factory() for name in KINDS.names_in_order()]
