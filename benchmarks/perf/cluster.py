"""How long 20 cells take in one process, and on simulated clusters of 1, 2 and 4 nodes of one CPU each.

`python -m benchmarks.perf.cluster` writes the table in results/perf/cluster.md. All nodes share this machine: where it
has fewer free cores than nodes, more of them cannot be faster.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from benchmarks.perf.memory import ROOT
from benchmarks.perf.timing import load_average
from robustcaps.execution.cluster.keeper import LOOPBACK_ONLY
from robustcaps.execution.engine_options import EngineOptions
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import RunProgress
from robustcaps.execution.runner import RunOptions, execute_suite
from robustcaps.suite.cell import Cell
from robustcaps.suite.resolve import RuntimeConfig
from robustcaps.utils.folder_lock import FolderLock
from robustcaps.utils.grid import grids_markdown, make_grid

RESULTS = ROOT / "results" / "perf"
NODES = (1, 2, 4)
CELLS = 20
SAMPLES = 128
SUITE = f'batch_size = 32\n[[data]]\nuse = "toys"\nlimit = {SAMPLES}\n[[models]]\nuse = "cnn"\n'


class Times(RunProgress):
    """When the first cell started and the last one ended."""

    def __init__(self) -> None:
        self.began, self.ended = 0.0, 0.0

    def cell_started(self, _: Cell) -> None:
        self.began = self.began or time.perf_counter()

    def cell_ended(self, _: Outcome) -> None:
        self.ended = time.perf_counter()


def measure_here(source: Path, out: Path, address: str) -> None:
    """Run a suite and print the seconds of its cells, and of everything."""
    engine = EngineOptions("ray", address) if address else EngineOptions()
    times, began = Times(), time.perf_counter()
    with FolderLock(out) as lock:
        config = RuntimeConfig(device="cpu")
        execution = execute_suite(source, lock, RunOptions(config, "", engine, shard_size=32, progress=times))
    if execution.failures:
        raise SystemExit(execution.failures[0].trace)
    print(json.dumps({"cells_s": times.ended - times.began, "run_s": time.perf_counter() - began}))


def measure(folder: Path, name: str, variables: dict[str, str], address: str = "") -> dict[str, float]:
    """Run the suite in a process of its own with one thread; return the seconds."""
    words = [sys.executable, "-m", "benchmarks.perf.cluster", str(folder / "suite.toml"), str(folder / name), address]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    seconds: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return seconds


@contextmanager
def simulated_nodes(folder: Path, count: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Start nodes of one CPU each; yield the address of the cluster and the variables to join it."""
    variables = {**LOOPBACK_ONLY, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    words = [sys.executable, "-m", "benchmarks.perf.nodes", str(folder), str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, env=environment, text=True, **pipes) as nodes:  # type: ignore[call-overload]  # noqa: S603
        try:
            yield nodes.stdout.readline().strip(), variables
        finally:
            nodes.stdin.close()
            nodes.wait()


def measure_all() -> pd.DataFrame:
    """Return a line for one process, and one per number of nodes."""
    attack = '[[attacks]]\nuse = "pgd"\nname = "pgd {0}"\neps = 0.{0:03d}\nsteps = 10\n'
    attacks = "".join(attack.format(number) for number in range(1, CELLS + 1))
    lines = []
    with tempfile.TemporaryDirectory(prefix="nodes-") as name:
        folder = Path(name)
        (folder / "suite.toml").write_text(SUITE + attacks)
        lines.append({"engine": "one process", **measure(folder, "local", {})})
        for count in NODES:
            with simulated_nodes(folder / f"r{count}", count) as (address, variables):
                seconds = measure(folder, f"o{count}", variables, address)
            lines.append({"engine": f"Ray, {count} node{'s' * (count > 1)}", **seconds})
    table = pd.DataFrame(lines)
    return table.assign(speedup=table["cells_s"].iloc[0] / table["cells_s"], load=load_average())


def markdown(table: pd.DataFrame) -> str:
    """Return the table for readers."""
    columns = ["engine", "cells: s", "whole run: s", "times as fast"]
    rows = [
        [str(line["engine"]), *(f"{line[name]:.1f}" for name in ("cells_s", "run_s")), f"{line['speedup']:.2f}"]
        for line in table.to_dict("records")
    ]
    load = f"load average {table['load'].iloc[0]:.1f} at the end"
    note = f"{os.cpu_count()} cores, {load}; {CELLS} cells of {SAMPLES} samples."
    return grids_markdown([make_grid(columns, rows, numeric=columns[1:], note=note)])


def main(arguments: Sequence[str]) -> None:
    """Measure everything, or one run if a suite, a folder and an address are given."""
    if arguments:
        measure_here(Path(arguments[0]), Path(arguments[1]), arguments[2])
        return
    table = measure_all()
    table.to_csv(RESULTS / "cluster.csv", index=False, float_format="%.4g")
    text = markdown(table)
    (RESULTS / "cluster.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
