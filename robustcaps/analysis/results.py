"""What a finished run shows: rows from the store, tables and figures; reads run.json and the cells, nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.analysis.tables.comparisons import (
    compare_attacks,
    compare_models,
    comparisons_markdown,
    headlines,
    sentences,
)
from robustcaps.analysis.tables.diagnoses import (
    checks_markdown,
    gradients_markdown,
    tabulate_checks,
    tabulate_gradients,
    tabulate_verdicts,
    verdicts_markdown,
)
from robustcaps.analysis.tables.matrices import target_matrix, targets_markdown, transfer_markdown, transfer_matrix
from robustcaps.analysis.tables.models import models_markdown, tabulate_models
from robustcaps.analysis.tables.perturbation_norms import (
    compare_sizes,
    distances,
    distances_markdown,
    size_sentences,
    sizes_markdown,
)
from robustcaps.analysis.tables.summary import summarise, table_markdown, violations, with_worst_case
from robustcaps.diagnostics.kinds.detection import detection_markdown, tabulate_detection
from robustcaps.diagnostics.kinds.overlap import overlap_markdown, tabulate_overlap
from robustcaps.diagnostics.kinds.views import tabulate_views, views_markdown
from robustcaps.errors import UserError
from robustcaps.execution.store import Store
from robustcaps.utils.files import write_atomically

Described = tuple[pd.DataFrame, Callable[[pd.DataFrame], str]]
"""A table, and what makes Markdown of it."""


@dataclass(frozen=True)
class StoredCell:
    """A cell as run.json names it."""

    id: str
    names: dict[str, str]
    kind: str


def read_record(out: Path) -> dict[str, Any]:
    """Return what run.json of an out folder says."""
    path = out / "run.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; is {out} the out folder of `robustcaps run`?") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(record, dict) or not {"suite", "cells"} <= record.keys():
        raise UserError(f"{path}: not the record of a run; run the suite again to renew it.")
    return record


def read_rows(out: Path, kind: str = "attack") -> pd.DataFrame:
    """Return all rows of one kind (attack, or one of `EXAMINATIONS`) that a run has finished; none without such cells.

    A run of which nothing is finished, of any kind, is an error.
    """
    cells = [StoredCell(cell["id"], cell["names"], cell.get("kind", "attack")) for cell in read_record(out)["cells"]]
    store = Store(out)
    rows = store.rows(cell for cell in cells if cell.kind == kind)
    if rows.empty and not any(store.has(cell) for cell in cells):
        raise UserError(f"{out}: no cell of the run is finished; there is nothing to show.")
    return rows


def read_table(out: Path) -> pd.DataFrame:
    """Return the rows of attacks summed up; empty where the suite has no attacks."""
    rows = read_rows(out)
    return rows if rows.empty else summarise(with_worst_case(rows))


def write_tables(out: Path) -> list[Path]:
    """Write every table that the run has something for as CSV and as Markdown, `table` first; return their files.

    Those of a former run that there is nothing to say for any more are removed.
    """
    written = []
    for name, (table, words) in _tables(out).items():
        files = {out / f"{name}.csv": _as_csv, out / f"{name}.md": words}
        for path, text in files.items():
            if table.empty:
                path.unlink(missing_ok=True)
                continue
            write_atomically(path, text(table))
            written.append(path)
    return written


def _as_csv(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, float_format="%.6g")


def _tables(out: Path) -> dict[str, Described]:
    """Return all tables of a run by name, each with its words; those that there is nothing to say for are empty."""
    rows, attacked, models = read_rows(out), read_table(out), read_record(out).get("models", ())
    verdicts = read_rows(out, "verdict")
    listed = models and not attacked.empty
    return {
        "table": (attacked, table_markdown),
        **_breakdowns(rows, models),
        "models": (tabulate_models(models, attacked) if listed else pd.DataFrame(), models_markdown),
        "verdicts": (tabulate_verdicts(verdicts), verdicts_markdown),
        "checks": (tabulate_checks(verdicts), checks_markdown),
        "gradients": (tabulate_gradients(read_rows(out, "gradients")), gradients_markdown),
        "detection": (read_detection(out), detection_markdown),
        "overlap": (read_overlap(out), overlap_markdown),
        "views": (read_views(out), views_markdown),
    }


def _breakdowns(rows: pd.DataFrame, models: Sequence[Mapping[str, Any]]) -> dict[str, Described]:
    """Return the tables that look at the rows of attacks from other sides."""
    names = {model["label"]: model["name"] for model in models}
    sides: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], Callable[[pd.DataFrame], str]]] = {
        "transfer": (transfer_matrix, transfer_markdown),
        "targets": (target_matrix, targets_markdown),
        "distances": (distances, partial(distances_markdown, names=names)),
        "sizes": (compare_sizes, sizes_markdown),
        "comparisons": (lambda each: compare_models(with_worst_case(each)), comparisons_markdown),
        "attack_comparisons": (compare_attacks, comparisons_markdown),
    }
    return {name: (rows if rows.empty else side(rows), words) for name, (side, words) in sides.items()}


def read_verdicts(out: Path) -> pd.DataFrame:
    """Return the verdicts of a run, a line each."""
    return tabulate_verdicts(read_rows(out, "verdict"))


def read_detection(out: Path) -> pd.DataFrame:
    """Return what attacks of a run got past detectors, a line per attack and eps."""
    return tabulate_detection(read_rows(out, "detection"))


def read_overlap(out: Path) -> pd.DataFrame:
    """Return how often the models of a run see both of two digits, a line per part of the images."""
    return tabulate_overlap(read_rows(out, "overlap"))


def read_views(out: Path) -> pd.DataFrame:
    """Return the errors of a run's models on familiar and novel views, a line each, and the published ones."""
    return tabulate_views(read_rows(out, "views"), read_record(out).get("models", ()))


def findings(out: Path) -> list[str]:
    """Return in words which model of a run is more robust than which, and which needs larger perturbations."""
    rows = read_rows(out)
    if rows.empty:
        return []
    return sentences(headlines(compare_models(with_worst_case(rows)))) + size_sentences(compare_sizes(rows))


def write_figures(out: Path, *, published: bool | None = None, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Draw every figure the table has curves for; `published` None does as the suite says."""
    record = read_record(out)
    with_published = bool(record["suite"]["figures"]["published"]) if published is None else published
    return list(_write_figures(out, with_published, formats))


def write_report(out: Path) -> Path:
    """Write report.html, one page with the figures drawn before, the numbers and how they came about."""
    from robustcaps.analysis.report import render_report  # noqa: PLC0415  jinja2 is needed here only

    rows = read_rows(out)
    drawings = sorted((out / "figures").glob("*.svg"))
    told = findings(out), read_rows(out, "verdict"), tabulate_gradients(read_rows(out, "gradients"))
    asked = {"detection": read_detection(out), "overlap": read_overlap(out), "views": read_views(out)}
    page = render_report(read_record(out), read_table(out), violations(rows), drawings, *told, asked)
    path = out / "report.html"
    write_atomically(path, page)
    return path


def _write_figures(out: Path, published: bool, formats: tuple[str, ...]) -> Iterator[Path]:
    from robustcaps.analysis.figures import draw_all, draw_diagnoses, save  # noqa: PLC0415  seaborn takes a second to import

    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.png"), *folder.glob("*.svg")):
        old.unlink()
    attacked = draw_all(read_table(out), read_rows(out), published=published)
    summed = read_detection(out), read_overlap(out), read_views(out)
    diagnosed = draw_diagnoses(read_verdicts(out), read_rows(out, "gradients"), *summed)
    for name, figure in (*attacked, *diagnosed):
        for ending in formats:
            path = folder / f"{name}.{ending}"
            save(figure, path)
            yield path
