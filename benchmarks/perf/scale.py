"""Stores of many rows or many cells, made up, and how long their tables, figures and report take.

`python -m benchmarks.perf.scale` prints the table of results/perf/scale.md.
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


def measure(folder: Path) -> tuple[float, float]:
    """Return the seconds and the gigabytes that tables, figures and report of a store take, in a process of its own."""
    code = (
        "import sys, time, resource; from pathlib import Path; from robustcaps.analysis.results import Results\n"
        "began = time.perf_counter(); Results(Path(sys.argv[1])).write_all()\n"
        "print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)  # noqa: S603
    seconds, gigabytes = map(float, result.stdout.split())
    return seconds, gigabytes


def main() -> None:
    """Measure stores of growing size."""
    for cells, rows in (
        (100, 1_000_000),
        (100, 3_000_000),
        (100, 10_000_000),
        (500, 500_000),
        (1000, 1_000_000),
        (2000, 2_000_000),
    ):
        with tempfile.TemporaryDirectory() as name:
            began = time.perf_counter()
            make_store(Path(name), cells=cells, rows=rows)
            made = time.perf_counter() - began
            seconds, gigabytes = measure(Path(name))
            print(
                f"{cells} cells, {rows:,} rows: {seconds:.1f} s, {gigabytes:.2f} GB (made in {made:.0f} s)", flush=True
            )


if __name__ == "__main__":
    main()
