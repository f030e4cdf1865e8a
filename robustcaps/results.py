"""What a finished run shows: rows from the store, table.csv and figures; reads run.json and the cells, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.breakdowns import (
    compare_sizes,
    distances,
    size_sentences,
    sizes_markdown,
    target_matrix,
    transfer_matrix,
)
from robustcaps.comparisons import compare_models, headlines, sentences
from robustcaps.detection_tables import detection_markdown, tabulate_detection
from robustcaps.diagnosis_tables import (
    gradients_markdown,
    tabulate_checks,
    tabulate_gradients,
    tabulate_verdicts,
    verdicts_markdown,
)
from robustcaps.errors import UserError
from robustcaps.files import write_atomically
from robustcaps.model_table import models_markdown, tabulate_models
from robustcaps.overlap_tables import overlap_markdown, tabulate_overlap
from robustcaps.store import Store
from robustcaps.tables import summarise, violations, with_worst_case
from robustcaps.view_tables import tabulate_views, views_markdown


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
    """Write every table that the run has something for, table.csv first, and return their files."""
    table = _write_tables(out, {"table": read_table(out)})
    return [*table, *write_breakdowns(out), *write_models(out), *write_diagnoses(out)]


def write_diagnoses(out: Path) -> list[Path]:
    """Write verdicts, checks, gradients, detection, overlap and views (.csv, .md), each where the run asked for it."""
    verdicts, gradients = read_rows(out, "verdict"), tabulate_gradients(read_rows(out, "gradients"))
    summed = tabulate_verdicts(verdicts)
    detection, overlap, views = read_detection(out), read_overlap(out), read_views(out)
    tables = {"verdicts": summed, "checks": tabulate_checks(verdicts), "gradients": gradients}
    written = _write_tables(out, {**tables, "detection": detection, "overlap": overlap, "views": views})
    pages = {
        "verdicts.md": (summed, verdicts_markdown),
        "gradients.md": (gradients, gradients_markdown),
        "detection.md": (detection, detection_markdown),
        "overlap.md": (overlap, overlap_markdown),
        "views.md": (views, views_markdown),
    }
    for name, (table, words) in pages.items():
        if not table.empty:
            write_atomically(out / name, words(table))
            written.append(out / name)
    return written


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


def _write_tables(out: Path, tables: dict[str, pd.DataFrame]) -> list[Path]:
    """Write tables as CSV, and remove those of a former run that there is nothing to say for."""
    written = []
    for name, table in tables.items():
        path = out / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)
            continue
        write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
        written.append(path)
    return written


def write_breakdowns(out: Path) -> list[Path]:
    """Write transfer, targets, distances, comparisons (.csv) and minimal.md, each where there is something to say."""
    rows = read_rows(out)
    if rows.empty:
        return []
    tables = {
        "transfer": transfer_matrix(rows),
        "targets": target_matrix(rows),
        "distances": distances(rows),
        "comparisons": compare_models(with_worst_case(rows)),
    }
    return [*_write_tables(out, tables), *_write_sizes(out, rows, tables["distances"])]


def _write_sizes(out: Path, rows: pd.DataFrame, sizes: pd.DataFrame) -> list[Path]:
    """Write minimal.md: the means of the smallest perturbations, beside published ones; none where none were sought."""
    path = out / "minimal.md"
    if sizes[sizes["goal"] == "untargeted"].empty:
        path.unlink(missing_ok=True)
        return []
    names = {model["label"]: model["name"] for model in read_record(out).get("models", ())}
    write_atomically(path, sizes_markdown(sizes, names, size_sentences(compare_sizes(rows))))
    return [path]


def findings(out: Path) -> list[str]:
    """Return in words which model of a run is more robust than which, and which needs larger perturbations."""
    rows = read_rows(out)
    if rows.empty:
        return []
    return sentences(headlines(compare_models(with_worst_case(rows)))) + size_sentences(compare_sizes(rows))


def write_models(out: Path) -> list[Path]:
    """Write models.csv and models.md, a line per model that has a card; none where no model has."""
    models, attacked = read_record(out).get("models"), read_table(out)
    if not models or attacked.empty:
        return []
    table = tabulate_models(models, attacked)
    files = {
        out / "models.csv": table.to_csv(index=False, float_format="%.6g"),
        out / "models.md": models_markdown(table),
    }
    for path, text in files.items():
        write_atomically(path, text)
    return list(files)


def write_figures(out: Path, *, published: bool | None = None, formats: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Draw every figure the table has curves for; `published` None does as the suite says."""
    record = read_record(out)
    with_published = bool(record["suite"]["figures"]["published"]) if published is None else published
    return list(_write_figures(out, with_published, formats))


def write_report(out: Path) -> Path:
    """Write report.html, one page with the figures drawn before, the numbers and how they came about."""
    from robustcaps.report import render_report  # noqa: PLC0415  jinja2 is needed here only

    rows = read_rows(out)
    drawings = sorted((out / "figures").glob("*.svg"))
    told = findings(out), read_rows(out, "verdict"), tabulate_gradients(read_rows(out, "gradients"))
    asked = {"detection": read_detection(out), "overlap": read_overlap(out), "views": read_views(out)}
    page = render_report(read_record(out), read_table(out), violations(rows), drawings, *told, asked)
    path = out / "report.html"
    write_atomically(path, page)
    return path


def _write_figures(out: Path, published: bool, formats: tuple[str, ...]) -> Iterator[Path]:
    from robustcaps.figures import draw_all, draw_diagnoses, save  # noqa: PLC0415  seaborn takes a second to import

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
