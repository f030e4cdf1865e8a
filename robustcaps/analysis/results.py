"""The results of a run: run.json and every stored cell are read once; tables, findings and figures derive from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from robustcaps.analysis.findings import list_findings
from robustcaps.analysis.records import ATTACK, read_run_record
from robustcaps.analysis.rows import join_tables, with_plain_texts, with_small_integers, with_usual_types
from robustcaps.analysis.tables.attack_tables import ATTACK_TABLES, AttackRows
from robustcaps.analysis.tables.ranking import with_statuses
from robustcaps.analysis.tables.summary import count_violations
from robustcaps.attacks.example_columns import EXAMPLE_COLUMNS, EXAMPLE_NAMES
from robustcaps.diagnostics.kinds.base import DiagnosticKind, Statuses, all_kinds
from robustcaps.errors import PluginFailed, UserError, describe_error
from robustcaps.execution.store import DamagedCell, Store
from robustcaps.registry import KINDS
from robustcaps.utils.files import write_atomically
from robustcaps.utils.grid import Grid, Section, grids_latex, grids_markdown

if TYPE_CHECKING:
    from altair import TopLevelMixin
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
        >>> results = rc.load_results("out/quick")
        >>> results.table             # accuracy by model, attack and eps, with intervals
        >>> results.tables["models"]  # every other table by name
        >>> results.rows()            # one row per (sample, eps)
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

    def _check_rows(self) -> None:
        """Raise before anything is written if there is nothing to show, or rows that only a missing plugin can show."""
        self._stored_rows(ATTACK)
        unknown = sorted(set(self._rows_by_kind) - {ATTACK, *(kind.name for kind in all_kinds())})
        if unknown:
            raise UserError(
                f"{self.out}: the rows of the diagnostic '{unknown[0]}' can be shown only with the plugin that "
                "measured them: --plugin FILE, or load_plugin(FILE) in Python."
            )

    def examples(self) -> pd.DataFrame:
        """Return the images of a few samples before and after every attack, read anew; none of an older run.

        `decode_image` of `robustcaps.attacks.example_columns` turns the bytes of the columns original and adversarial
        into arrays.
        """
        store, parts = Store(self.out), []
        for cell in self.record["cells"]:
            if cell["kind"] == ATTACK:
                with suppress(DamagedCell):  # `problems` names it
                    parts.append(store.read_examples(StoredCell(cell["id"], cell["names"], cell["kind"])))
        found = [rows for rows in parts if rows is not None and len(rows)]
        if not found:
            return pd.DataFrame(columns=[*EXAMPLE_NAMES, *EXAMPLE_COLUMNS])
        return pd.concat(found, ignore_index=True)

    @cached_property
    def attacks(self) -> AttackRows:
        """The rows of attacks and what is derived from them."""
        return AttackRows(self._stored_rows(ATTACK), self.models, self.record["classes"])

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
        if not tables["ranking"].empty:
            tables["ranking"] = with_statuses(tables["ranking"], self._statuses(tables))
        return tables

    def _statuses(self, tables: Mapping[str, pd.DataFrame]) -> dict[str, Statuses]:
        """Return what every kind of diagnostic says of the models, if it says anything."""
        statuses = {}
        for kind in all_kinds():
            with _plugin_errors(kind):
                statuses[kind.name] = kind.statuses(tables, self.models)
        return {name: found for name, found in statuses.items() if found}

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
        """At most five sentences: who is most robust, what verdicts, transfer and routing say, what is undecided."""
        return list_findings(self.tables)

    @cached_property
    def violations(self) -> pd.DataFrame:
        """How many rows of which attack are invalid, and why."""
        return count_violations(self.attacks.rows)

    def grids(self, name: str) -> list[Grid]:
        """Return a table for readers."""
        return _grid_makers()[name](self.tables[name])

    def main_grids(self) -> list[Grid]:
        """Return the summaries of the attacks and the first table of every kind of diagnostic, for readers."""
        names = [name for name in ("ranking", "auc", "table") if not self.tables[name].empty]
        names += [kind.tables[0].name for kind, _ in self.kinds()]
        return [grid for name in names for grid in self.grids(name)]

    def kinds(self) -> Iterator[tuple[DiagnosticKind, pd.DataFrame]]:
        """Yield every kind of diagnostic that the run has rows of, with its rows."""
        for kind in all_kinds():
            rows = self._stored_rows(kind.name)
            if not rows.empty:
                yield kind, rows

    def sections(self) -> Iterator[tuple[str, Section, list[tuple[str, str, TopLevelMixin]]]]:
        """Yield the name of every kind of diagnostic, its section of the report and its charts."""
        for kind, rows in self.kinds():
            with _plugin_errors(kind):
                section, charts = kind.report_section(rows, self.tables), list(kind.charts(rows, self.tables))
            yield kind.name, section, charts

    def figures(self, *, published: bool | None = None, only: Collection[str] = ()) -> Iterator[tuple[str, Figure]]:
        """Yield (name, figure) for everything that the run has something to show of, in the current style.

        Args:
            published: Draw published curves beside ours; None does as the suite says.
            only: Names of figures; all of them if empty. The error for an unknown name lists the choices.
        """
        from robustcaps.analysis.figures import attack_figures  # noqa: PLC0415  seaborn takes a second to import

        if published is None:
            published = bool(self.record["suite"]["figures"].get("published"))
        names = []
        for name, draw in attack_figures(self.attacks, self.tables, published=published).items():
            names.append(name)
            if not only or name in only:
                yield name, draw()
        if only and set(only) <= set(names):
            return
        for kind, rows in self.kinds():
            with _plugin_errors(kind):
                drawn = list(kind.draw(rows, self.tables))
            names += [name for name, _ in drawn]
            yield from ((name, figure) for name, figure in drawn if not only or name in only)
        for name in only:
            if name not in names:
                raise UserError(f"{self.out}: unknown figure '{name}'. Choose from: {', '.join(names) or 'none'}.")

    def write_tables(self) -> list[Path]:
        """Write every table that is not empty as CSV, Markdown and LaTeX, remove the others, and return the files."""
        self._check_rows()
        written = []
        for name, grids in _grid_makers().items():
            table = self.tables[name]
            files = [self.out / f"{name}.{ending}" for ending in ("csv", "md", "tex")]
            if table.empty:
                for file in files:
                    file.unlink(missing_ok=True)
                continue
            for_readers = grids(table)
            texts = (
                table.to_csv(index=False, float_format="%.6g"),
                grids_markdown(for_readers),
                grids_latex(for_readers, name),
            )
            for file, text in zip(files, texts, strict=True):
                write_atomically(file, text)
            written += files
        return written

    def write_figures(
        self,
        *,
        published: bool | None = None,
        only: Collection[str] = (),
        formats: Sequence[str] = ("png", "svg"),
        style: str = "screen",
        width: float | None = None,
    ) -> list[Path]:
        """Draw figures into OUT/figures, or, for a paper, OUT/figures/paper, and return the files.

        Args:
            published: Draw published curves beside ours; None does as the suite says.
            only: Names of figures; without any, all are drawn, and those of a former run are removed.
            formats: 'png', 'svg' or 'pdf'.
            style: 'screen', or 'paper': small fonts, thin lines, 3.3 inches wide, captions in files of their own.
            width: Inches.
        """
        from robustcaps.utils.figure_style import check_formats, figure_style, save  # noqa: PLC0415  seaborn is slow

        self._check_rows()
        check_formats(formats)
        folder = self._figure_folder(style)
        with figure_style(style, width) as chosen:
            drawn = list(self.figures(published=published, only=only))
            folder.mkdir(exist_ok=True, parents=True)
            if not only:
                self._remove_figures(folder, formats)
            written = []
            for name, figure in drawn:
                for ending in formats:
                    written.append(folder / f"{name}.{ending}")
                    save(figure, written[-1])
                if chosen.is_paper and figure.get_label():
                    written.append(folder / f"{name}.txt")
                    write_atomically(written[-1], f"{figure.get_label()}.\n")
        return written

    def _figure_folder(self, style: str) -> Path:
        """Return where figures of a style are drawn: the report shows those for the screen."""
        return self.out / "figures" / ("paper" if style == "paper" else "")

    @staticmethod
    def _remove_figures(folder: Path, formats: Sequence[str]) -> None:
        for ending in formats:
            for old in folder.glob(f"*.{ending}"):
                old.unlink()

    def write_report(self) -> Path:
        """Write report.html: one page with the figures drawn before, the numbers and how they were made."""
        from robustcaps.analysis.report import render_report  # noqa: PLC0415  jinja2 is needed here only

        self._check_rows()
        path = self.out / "report.html"
        write_atomically(path, render_report(self))
        return path

    def write_all(self) -> list[Path]:
        """Write tables, figures and the report, and return the files; all figures of a former run are removed."""
        from robustcaps.utils.figure_style import FORMATS  # noqa: PLC0415  seaborn takes a second to import

        tables = self.write_tables()
        for style in ("screen", "paper"):
            self._remove_figures(self._figure_folder(style), (*FORMATS, "txt"))
        return [*tables, *self.write_figures(), self.write_report()]


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
