"""What a finished run shows: rows from the store, table.csv and figures; reads run.json and the cells, nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.breakdowns import distances, target_matrix, transfer_matrix
from robustcaps.comparisons import compare_models, headlines, sentences
from robustcaps.errors import UserError
from robustcaps.files import write_atomically
from robustcaps.model_table import models_markdown, tabulate_models
from robustcaps.store import Store
from robustcaps.tables import summarise, violations, with_worst_case


@dataclass(frozen=True)
class StoredCell:
    """A cell as run.json names it."""

    id: str
    names: dict[str, str]


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


def read_rows(out: Path) -> pd.DataFrame:
    """Return all rows of the cells that a run has finished."""
    cells = [StoredCell(cell["id"], cell["names"]) for cell in read_record(out)["cells"]]
    rows = Store(out).rows(cells)
    if rows.empty:
        raise UserError(f"{out}: no cell of the run is finished; there is nothing to show.")
    return rows


def write_table(out: Path) -> tuple[pd.DataFrame, Path]:
    """Sum up the rows, write table.csv and return both."""
    table = summarise(with_worst_case(read_rows(out)))
    path = out / "table.csv"
    write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
    return table, path


def write_breakdowns(out: Path) -> list[Path]:
    """Write transfer, targets, distances and comparisons (.csv), each where the run has something to say about it."""
    rows, written = read_rows(out), []
    tables = {
        "transfer": transfer_matrix(rows),
        "targets": target_matrix(rows),
        "distances": distances(rows),
        "comparisons": compare_models(with_worst_case(rows)),
    }
    for name, table in tables.items():
        path = out / f"{name}.csv"
        if table.empty:
            path.unlink(missing_ok=True)
            continue
        write_atomically(path, table.to_csv(index=False, float_format="%.6g"))
        written.append(path)
    return written


def findings(out: Path) -> list[str]:
    """Return in words which model of a run is more robust than which."""
    return sentences(headlines(compare_models(with_worst_case(read_rows(out)))))


def write_models(out: Path) -> list[Path]:
    """Write models.csv and models.md, a line per model that has a card; none where no model has."""
    models = read_record(out).get("models")
    if not models:
        return []
    table = tabulate_models(models, summarise(with_worst_case(read_rows(out))))
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
    table = summarise(with_worst_case(rows))
    drawings = sorted((out / "figures").glob("*.svg"))
    page = render_report(read_record(out), table, violations(rows), drawings, findings(out))
    path = out / "report.html"
    write_atomically(path, page)
    return path


def _write_figures(out: Path, published: bool, formats: tuple[str, ...]) -> Iterator[Path]:
    from robustcaps.figures import draw_all, save  # noqa: PLC0415  seaborn takes a second to import

    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.png"), *folder.glob("*.svg")):
        old.unlink()
    rows = read_rows(out)
    for name, figure in draw_all(summarise(with_worst_case(rows)), rows, published=published):
        for ending in formats:
            path = folder / f"{name}.{ending}"
            save(figure, path)
            yield path
