"""The results of a run: run.json and every stored cell are read once; tables, findings and figures derive from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from robustcaps.analysis.records import ATTACK, read_run_record
from robustcaps.analysis.rows import join_tables, with_plain_texts, with_small_integers, with_usual_types
from robustcaps.analysis.tables.attack_tables import ATTACK_TABLES, AttackRows
from robustcaps.analysis.tables.summary import count_violations
from robustcaps.diagnostics.kinds.base import DiagnosticKind, all_kinds
from robustcaps.errors import PluginFailed, UserError, describe_error
from robustcaps.execution.store import DamagedCell, Store
from robustcaps.registry import KINDS
from robustcaps.utils.files import write_atomically
from robustcaps.utils.grid import Grid, Section, grids_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StoredCell:
    """A cell as run.json lists it."""

    id: str
    names: dict[str, str]
    kind: str


class Results:
    """What a run found. Everything is computed on first use and kept.

    Example:
        results = rc.load_results("out/quick")
        results.table            # accuracy by model, attack and eps, with intervals
        results.tables["models"] # every other table by name
        results.rows()           # one row per (sample, eps)
    """

    def __init__(self, out: Path | str) -> None:
        self.out = Path(out)
        self.record = read_run_record(self.out)
        self.models: list[Mapping[str, Any]] = self.record["models"]

    @cached_property
    def _stored(self) -> tuple[dict[str, pd.DataFrame], list[str]]:
        """The rows of all finished cells by kind, and what is missing or damaged; each file is read once."""
        store = Store(self.out)
        tables: list[pa.Table] = []
        frames: dict[str, list[pd.DataFrame]] = {}
        problems = []
        for cell in self.record["cells"]:
            stored = StoredCell(cell["id"], cell["names"], cell["kind"])
            label = cell["label"] or cell["id"]
            try:
                if stored.kind == ATTACK and (table := store.read_table(stored)) is not None:
                    tables.append(with_small_integers(table))
                elif stored.kind != ATTACK and (rows := store.read(stored)) is not None:
                    frames.setdefault(stored.kind, []).append(rows)
                else:
                    problems.append(f"{label}: {_missing_because(cell)}")
            except DamagedCell as error:
                problems.append(f"{label}: {error}")
        by_kind = {kind: pd.concat(parts, ignore_index=True) for kind, parts in frames.items()}
        return by_kind | ({ATTACK: join_tables(tables)} if tables else {}), problems

    @property
    def _rows_by_kind(self) -> dict[str, pd.DataFrame]:
        return self._stored[0]

    @property
    def problems(self) -> list[str]:
        """The cells that no table shows, each with the reason: missing, failed or damaged."""
        return [] if self._is_published else self._stored[1]

    @property
    def has_rows(self) -> bool:
        """Whether any cell of the run is finished and stored."""
        return bool(self._rows_by_kind)

    @property
    def has_tables(self) -> bool:
        """Whether there is anything to show: finished cells, or the tables of a published run."""
        return self.has_rows or self._is_published

    @property
    def _is_published(self) -> bool:
        """Whether the folder holds the tables of a run without its cells, as results are published."""
        return not (self.out / "cells").exists() and any(self.out.glob("*.csv"))

    def rows(self, kind: str = ATTACK) -> pd.DataFrame:
        """Return the rows of all finished cells of a kind ('attack', 'verdict', 'gradients', ...), or none."""
        return with_usual_types(self._stored_rows(kind))

    def _stored_rows(self, kind: str) -> pd.DataFrame:
        """Return the same rows as they are kept, those of attacks with categories."""
        if not self.has_rows:
            raise UserError(f"{self.out}: no cell of this run is finished, so there is nothing to show.")
        return self._rows_by_kind.get(kind, pd.DataFrame())

    @cached_property
    def attacks(self) -> AttackRows:
        """The rows of attacks and what is derived from them."""
        return AttackRows(self._stored_rows(ATTACK), self.models)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table of the run by name; empty ones where the suite has nothing for them.

        A folder with tables but without cells, as results are published, is read as it is.
        """
        if self._is_published:
            published = {path.stem: _read_csv(path) for path in sorted(self.out.glob("*.csv"))}
            return {name: pd.DataFrame() for name in _grid_makers()} | published
        attacks = self.attacks
        tables = {
            table.name: attacks.rows if attacks.rows.empty else with_plain_texts(table.tabulate(attacks))
            for table in ATTACK_TABLES
        }
        for kind in all_kinds():
            with _plugin_errors(kind):
                tables |= kind.tabulate(self._stored_rows(kind.name), self.models)
        return tables

    @property
    def table(self) -> pd.DataFrame:
        """The summary table: accuracy and success by model, attack and eps; empty where the suite has no attacks."""
        return self.tables["table"]

    @property
    def verdicts(self) -> pd.DataFrame:
        """One line per verdict; empty where the suite asks for none."""
        return self.tables["verdicts"]

    @cached_property
    def findings(self) -> list[str]:
        """Sentences: which model is more robust, and which needs larger perturbations."""
        return [] if self.attacks.rows.empty else self.attacks.findings

    @cached_property
    def violations(self) -> pd.DataFrame:
        """How many rows of which attack are invalid, and why."""
        return count_violations(self.attacks.rows)

    def grids(self, name: str) -> list[Grid]:
        """Return a table for readers."""
        return _grid_makers()[name](self.tables[name])

    def main_grids(self) -> list[Grid]:
        """Return the summaries of the attacks and the first table of every kind of diagnostic, for readers."""
        names = [name for name in ("auc", "table") if not self.tables[name].empty]
        names += [kind.tables[0].name for kind, _ in self.kinds()]
        return [grid for name in names for grid in self.grids(name)]

    def kinds(self) -> Iterator[tuple[DiagnosticKind, pd.DataFrame]]:
        """Yield every kind of diagnostic that the run has rows of, with its rows."""
        for kind in all_kinds():
            rows = self._stored_rows(kind.name)
            if not rows.empty:
                yield kind, rows

    def sections(self) -> list[Section]:
        """Return the diagnostics' sections of the report."""
        sections = []
        for kind, rows in self.kinds():
            with _plugin_errors(kind):
                sections.append(kind.report_section(rows, self.tables))
        return sections

    def figures(self, *, published: bool | None = None) -> Iterator[tuple[str, Figure]]:
        """Yield (name, figure) for everything that the run has something to show of.

        Args:
            published: Draw published curves beside ours; None does as the suite says.
        """
        from robustcaps.analysis.figures import draw_attack_figures  # noqa: PLC0415  seaborn takes a second to import

        if published is None:
            published = bool(self.record["suite"]["figures"].get("published"))
        yield from draw_attack_figures(self.attacks, self.tables, published=published)
        for kind, rows in self.kinds():
            with _plugin_errors(kind):
                drawn = list(kind.draw(rows, self.tables))
            yield from drawn

    def write_tables(self) -> list[Path]:
        """Write every table that is not empty as CSV and Markdown, remove the others, and return the files."""
        self._stored_rows(ATTACK)  # raises before anything is replaced
        written = []
        for name, grids in _grid_makers().items():
            table = self.tables[name]
            csv, markdown = self.out / f"{name}.csv", self.out / f"{name}.md"
            if table.empty:
                csv.unlink(missing_ok=True)
                markdown.unlink(missing_ok=True)
                continue
            write_atomically(csv, table.to_csv(index=False, float_format="%.6g"))
            write_atomically(markdown, grids_markdown(grids(table)))
            written += [csv, markdown]
        return written

    def write_figures(self, *, published: bool | None = None, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
        """Draw all figures into OUT/figures, remove those of a former run, and return the files."""
        from robustcaps.utils.figure_style import save  # noqa: PLC0415  seaborn takes a second to import

        self._stored_rows(ATTACK)  # raises before anything is replaced
        folder = self.out / "figures"
        folder.mkdir(exist_ok=True)
        for old in (*folder.glob("*.png"), *folder.glob("*.svg")):
            old.unlink()
        written = []
        for name, figure in self.figures(published=published):
            for ending in formats:
                written.append(folder / f"{name}.{ending}")
                save(figure, written[-1])
        return written

    def write_report(self) -> Path:
        """Write report.html: one page with the figures drawn before, the numbers and how they were made."""
        from robustcaps.analysis.report import render_report  # noqa: PLC0415  jinja2 is needed here only

        path = self.out / "report.html"
        write_atomically(path, render_report(self))
        return path

    def write_all(self) -> list[Path]:
        """Write tables, figures and the report, and return the files."""
        return [*self.write_tables(), *self.write_figures(), self.write_report()]


@contextmanager
def _plugin_errors(kind: DiagnosticKind) -> Iterator[None]:
    """Name the plugin whose code fails to show its rows, whatever it raises."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if KINDS.entry(kind.name).built_in:
            raise
        raise PluginFailed(f"diagnostic '{kind.name}' cannot show its rows: {describe_error(error)}") from error


def _grid_makers() -> dict[str, Callable[[pd.DataFrame], list[Grid]]]:
    """Return what makes a table readable, by the table's name."""
    attack_tables = {table.name: table.grids for table in ATTACK_TABLES}
    return attack_tables | {table.name: table.grids for kind in all_kinds() for table in kind.tables}


def _read_csv(path: Path) -> pd.DataFrame:
    """Return a written table; only an empty cell is a missing value, so that a model may be called 'None'."""
    return pd.read_csv(path, keep_default_na=False, na_values=["", "nan"])


def _missing_because(cell: Mapping[str, Any]) -> str:
    """Return why a cell has no file, as run.json tells it."""
    if cell["status"] == "failed":
        return f"failed ({cell['violation'] or 'raised'})"
    return "its file is gone" if cell["status"] == "finished" else "not computed yet"
