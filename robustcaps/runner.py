"""A whole run: plan, compute what is not there yet, then tables, figures and the record of how it was done."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.engines import Listener, Outcome, pick_engine
from robustcaps.files import write_atomically
from robustcaps.plan import Cell, make_plan
from robustcaps.results import write_figures, write_report, write_table
from robustcaps.store import Store
from robustcaps.suite import Suite, load_suite
from robustcaps.workshop import Setting, Workshop

PACKAGES = ("robustcaps", "torch", "numpy", "pandas", "pyarrow", "torchattacks", "foolbox", "ray")


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    out: Path
    table: pd.DataFrame
    computed: int
    reused: int
    failures: tuple[Outcome, ...]
    files: tuple[Path, ...]


def run(
    suite: Path | str,
    out: Path | str | None = None,
    engine: str = "local",
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    plugins: Sequence[Path | str] = (),
    batch_size: int | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a suite into a folder (default: out/<suite's name>) and return its table; finished cells are not repeated."""
    listener = listener or Listener()
    began = time.perf_counter()
    carry = pick_engine(engine)
    source = Path(suite)
    setting = Setting(Path(data_dir) if data_dir else None, device, tuple(map(Path, plugins)))
    workshop = Workshop(setting)
    loaded = load_suite(source)
    if batch_size is not None:
        loaded = loaded.model_copy(update={"batch_size": batch_size})
    cells = make_plan(loaded, workshop, source=str(source), progress=listener.data_prepared)
    store = Store(Path(out) if out else Path("out") / loaded.name)
    store.prepare()
    finished = [cell for cell in cells if store.has(cell)]
    missing = [cell for cell in cells if not store.has(cell)]
    listener.run_started(missing, finished)
    failures = []
    for outcome in carry(missing, workshop, listener):
        _keep(store, outcome)
        listener.cell_ended(outcome)
        if outcome.rows is None:
            failures.append(outcome)
    record = _record(loaded, source, cells, store, engine)
    record["timings"] = {"run_seconds": round(time.perf_counter() - began, 3), "computed": len(missing)}
    write_atomically(store.folder / "run.json", json.dumps(record, indent=2) + "\n")
    if len(failures) == len(cells):
        return Run(store.folder, pd.DataFrame(), len(missing), 0, tuple(failures), (store.folder / "run.json",))
    table, table_file = write_table(store.folder)
    drawings = write_figures(store.folder)
    files = (table_file, *drawings, write_report(store.folder), store.folder / "run.json")
    return Run(store.folder, table, len(missing), len(finished), tuple(failures), files)


def _keep(store: Store, outcome: Outcome) -> None:
    if outcome.rows is None:
        store.save_failure(outcome.cell, outcome.trace)
    else:
        store.save(outcome.cell, outcome.rows, outcome.seconds)


def _record(suite: Suite, source: Path, cells: Sequence[Cell], store: Store, engine: str) -> dict[str, Any]:
    """Return what run.json says: enough to know what was run, on what, and to run it again."""
    return {
        "suite": suite.model_dump(mode="json"),
        "source": source.name,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(source.parent),
        "engine": engine,
        "versions": {"python": platform.python_version(), **versions()},
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "cells": [
            {
                "id": cell.id,
                "label": cell.label,
                "names": cell.names,
                "settings": cell.settings,
                "status": "finished" if store.has(cell) else "failed",
                "seconds": store.seconds(cell),
            }
            for cell in cells
        ],
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that results may rest on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> str | None:
    """Return the git commit that a folder is at, with '+changes' if it is not clean; None outside of git."""
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S603
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+changes" if status.stdout.strip() else "")
