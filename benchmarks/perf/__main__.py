"""Speed, measured side by side in one run: what counts are the ratios."""

from __future__ import annotations

import torch
from rich.console import Console

from benchmarks.perf import autoattack, comparison, overhead, sweep, table
from benchmarks.perf.drawing import measure_drawing
from benchmarks.perf.memory import ROOT
from benchmarks.perf.timing import IDLE, load_average
from benchmarks.perf.zoo import measure_models

RESULTS = ROOT / "results" / "perf"


def main() -> None:
    """Measure everything; the comparison with the textbook goes to results/perf."""
    console = Console(width=140)
    load = load_average()
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load average {load:.2f}")
    if load > IDLE:
        console.print(
            f"the machine is not idle (load average above {IDLE}): take these numbers as rough", style="yellow"
        )
    with console.status("") as status:
        measured = table.tabulate(comparison.measure(comparison.CASES, say=status.update), load)
    console.print(table.grid(measured))
    RESULTS.mkdir(parents=True, exist_ok=True)
    measured.to_csv(RESULTS / "table.csv", index=False)
    (RESULTS / "table.md").write_text(table.markdown(measured), encoding="utf-8")
    console.print(measure_drawing())
    console.print(measure_models())
    passes = sweep.measure_sweep()
    console.print(sweep.markdown(passes))
    (RESULTS / "passes.md").write_text(sweep.markdown(passes), encoding="utf-8")
    passes.to_csv(RESULTS / "passes.csv", index=False, float_format="%.6g")
    console.print(overhead.measure_overhead())
    autoattack.main()


if __name__ == "__main__":
    main()
