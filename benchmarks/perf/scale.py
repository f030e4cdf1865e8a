"""Stores of many rows or many cells, made up, and how long their tables, figures and report take.

`python -m benchmarks.perf.scale` writes the table in results/perf/scale.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from robustcaps.execution.store import Store
from robustcaps.utils.files import json_checksum
from robustcaps.utils.grid import grids_markdown, make_grid

RESULTS = Path(__file__).parents[2] / "results" / "perf"
SIZES = (
    *((100, rows) for rows in (1_000_000, 3_000_000, 10_000_000)),
    *((cells, 1000 * cells) for cells in (500, 1000, 2000)),
)
"""Cells and rows of the stores."""
MANY_CELLS = 500
"""Stores with so many cells also tell what planning and running as many cells takes."""
CLASSES = 10
EPS = (0.0, 0.01, 0.02, 0.03, 0.05)


@dataclass(frozen=True)
class MadeUpCell:
    """A cell as the store wants it."""

    id: str
    names: dict[str, str]
    settings: dict[str, str]

    @property
    def label(self) -> str:
        """Its name."""
        return self.id


def make_store(folder: Path, *, cells: int, rows: int, models: int = 5) -> None:
    """Write a run of so many cells with so many rows in all: attacks on a few models, all on the same samples."""
    store = Store(folder)
    store.prepare()
    samples = max(1, rows // cells // len(EPS))
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, samples)
    records = []
    for number in range(cells):
        model, attack = f"model {number % models}", f"attack {number // models}"
        cell = MadeUpCell(f"{number:020d}", {"suite": "scale", "model": model, "data": "made up", "attack": attack}, {})
        store.save(cell, _rows(random, labels, number), seconds=1.0)
        record = {"id": cell.id, "kind": "attack", "label": f"{model} / {attack}", "names": cell.names}
        records.append({**record, "status": "finished", "violation": "", "seconds": 1.0, "settings": {}})
    suite = {"name": "scale", "title": "Made up", "seeds": [0], "figures": {"published": False}}
    versions = {"command": "", "commit": "", "versions": {}, "finished_at": "", "models": []}
    whole: dict[str, object] = {"suite": suite, "cells": records, **versions}
    (folder / "run.json").write_text(json.dumps({**whole, "checksum": json_checksum(whole)}))


def _rows(random: np.random.Generator, labels: np.ndarray, number: int) -> pd.DataFrame:
    """Return the rows of one cell: accuracy falls with eps, and with the number of the attack."""
    n = len(labels)
    parts = []
    strength = random.random(n) * (1 + number % 7)
    for eps in EPS:
        fooled = strength * eps > 0.04 * random.random(n) + 0.01
        parts.append(
            pd.DataFrame(
                {
                    "suite": "",
                    "model": "m",
                    "data": "d",
                    "attack": "a",
                    "norm": "linf",
                    "eps": eps,
                    "unit": "pixel",
                    "goal": "untargeted",
                    "target": -1,
                    "seed": 0,
                    "index": np.arange(n),
                    "label": labels,
                    "clean_pred": labels,
                    "adv_pred": np.where(fooled, (labels + 1) % CLASSES, labels),
                    "fooled": fooled,
                    "valid": True,
                    "violation": "",
                    "linf": (eps * fooled).astype(np.float32),
                    "l2": (eps * fooled).astype(np.float32),
                    "forwards": 1,
                    "backwards": 1,
                    "queries": 2,
                    "surrogate": "",
                    "closest": False,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True)
class Measurement:
    """What a process of its own took."""

    seconds: float
    cpu_seconds: float
    gigabytes: float
    details: dict[str, float]


WRITE_ALL = """
from robustcaps.analysis.results import Results
Results(folder).write_all()
"""
RUN_CELLS = """
from benchmarks.perf.scale import run_cells
details = run_cells(folder)
"""
HEAD = """
import json, resource, sys, time
from pathlib import Path
folder, details = Path(sys.argv[1]), {}
began, cpu = time.perf_counter(), time.process_time()
"""
TAIL = """
seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps([seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, details]))
"""


def measure(code: str, folder: Path) -> Measurement:
    """Run code on a folder in a process of its own."""
    command = [sys.executable, "-c", HEAD + code + TAIL, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return Measurement(*json.loads(result.stdout.splitlines()[-1]))


def write_suite(folder: Path, cells: int) -> None:
    """Write a suite of many small cells: one sample of the toys, one model, FGSM at as many eps."""
    attacks = "".join(
        f'[[attacks]]\nuse = "fgsm"\nname = "fgsm {number}"\neps = {number / 1e5}\n\n' for number in range(1, cells + 1)
    )
    head = '[[data]]\nuse = "toys"\nlimit = 1\n\n[[models]]\nuse = "cnn-small"\n\n'
    (folder / "suite.toml").write_text(head + attacks)


def run_cells(folder: Path) -> dict[str, float]:
    """Plan and run the suite of a folder; return what the plan takes, and what a cell takes beside its work."""
    from robustcaps.execution.runner import RunOptions, execute_suite  # noqa: PLC0415  imports torch
    from robustcaps.suite.plan import make_plan  # noqa: PLC0415
    from robustcaps.suite.resolve import Resolver, RuntimeConfig  # noqa: PLC0415
    from robustcaps.suite.spec import load_suite  # noqa: PLC0415
    from robustcaps.utils.folder_lock import FolderLock  # noqa: PLC0415

    source = folder / "suite.toml"
    config = RuntimeConfig(device="cpu")
    resolver = Resolver(config)
    make_plan(load_suite(source), resolver, source=str(source))  # loads model and data once, as every run does
    began = time.process_time()
    cells = make_plan(load_suite(source), Resolver(config), source=str(source))
    planned = time.process_time() - began
    began = time.process_time()
    with FolderLock(folder / "out") as lock:
        execution = execute_suite(source, lock, RunOptions(config, command=""))
    whole = time.process_time() - began
    record = json.loads((execution.out / "run.json").read_text())
    work = sum(cell["seconds"] for cell in record["cells"])
    return {"plan_seconds": planned, "cell_milliseconds": 1000 * (whole - planned - work) / len(cells)}


def measure_all() -> pd.DataFrame:
    """Return a line per store: of growing numbers of rows, then of cells."""
    lines = []
    for cells, rows in SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_store(folder, cells=cells, rows=rows)
            shown = measure(WRITE_ALL, folder)
            line = {"cells": cells, "rows": rows, "seconds": shown.seconds, "cpu_seconds": shown.cpu_seconds}
            line["gigabytes"] = shown.gigabytes
        if cells >= MANY_CELLS:
            with tempfile.TemporaryDirectory() as name:
                write_suite(Path(name), cells)
                line |= measure(RUN_CELLS, Path(name)).details
        lines.append(line)
        print(line, flush=True)
    return pd.DataFrame(lines)


def markdown(table: pd.DataFrame) -> str:
    """Return the table for readers."""
    columns = ["cells", "rows", "tables, figures, report: s", "CPU s", "peak memory GB", "plan s", "harness ms a cell"]
    rows = [
        [
            f"{line['cells']:,}",
            f"{line['rows']:,}",
            *(f"{line[name]:.1f}" for name in ("seconds", "cpu_seconds")),
            f"{line['gigabytes']:.2f}",
            *("" if pd.isna(line[name]) else f"{line[name]:.1f}" for name in ("plan_seconds", "cell_milliseconds")),
        ]
        for line in table.to_dict("records")
    ]
    return grids_markdown([make_grid(columns, rows, numeric=columns)])


def main() -> None:
    """Measure stores of growing size and write results/perf/scale.csv and scale.md."""
    table = measure_all()
    table.to_csv(RESULTS / "scale.csv", index=False, float_format="%.4g")
    text = markdown(table)
    (RESULTS / "scale.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
