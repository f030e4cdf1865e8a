"""The share of CPU time that attacks spend outside the model's forward and backward passes, on one thread.

`python -m benchmarks.perf.overhead` measures an earlier commit and this code in turns, and writes the table in
results/perf/overhead.md. The share is a ratio within one run, so other work on the machine hardly moves it. A floor for
it is what a bare loop spends outside the passes, on the same images.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.utils.grid import grids_markdown, make_grid

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "perf"
EARLIER = "2d2b0cc"
"""The commit that is measured as well, if the repository holds it: the last one before work on the overhead."""
ROUNDS = 3
"""Times that each tree of sources has its turn, in a process of its own."""
SAMPLES, BATCH = 1024, 64
MODELS = ("cnn", "cnn-small")
ATTACKS: dict[str, dict[str, Any]] = {
    "fgsm": {"eps": [0.01, 0.02, 0.03, 0.05]},
    "bim": {"eps": [0.01, 0.03], "steps": 10},
    "square": {"eps": 0.03, "queries": 40},
}


@dataclass
class Stopwatch:
    """CPU seconds spent inside some functions."""

    seconds: float = 0.0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds the time it takes."""

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.process_time() - began

        return timed


def measure_shares() -> dict[str, float]:
    """Return the share of time outside the passes, by 'model attack', and that of bare loops by 'model attack bare'."""
    import torch  # noqa: PLC0415  the process that compares two trees needs no torch

    import robustcaps as rc  # noqa: PLC0415  imports torch when used
    from benchmarks.perf import bare_loops  # noqa: PLC0415  imports torch

    torch.set_num_threads(1)
    passes, shares = Stopwatch(), {}
    torch.autograd.grad = passes.wrap(torch.autograd.grad)
    data = rc.load_data("toys", limit=SAMPLES)
    for model_name in MODELS:
        model = rc.load_model(model_name, data="toys", device="cpu")
        model.forward = passes.wrap(model.forward)
        for attack_name, options in ATTACKS.items():
            attack = rc.load_attack(attack_name, **options)
            rc.evaluate(model, data.first(BATCH), attack, batch_size=BATCH)  # warms up
            actions: dict[str, Callable[[], object]] = {
                "": partial(rc.evaluate, model, data, attack, batch_size=BATCH),
                " bare": partial(bare_loops.run, model, data.images, data.labels, BATCH, attack_name, options),
            }
            for kind, action in actions.items():
                passes.seconds, began = 0.0, time.process_time()
                action()
                shares[f"{model_name} {attack_name}{kind}"] = 1 - passes.seconds / (time.process_time() - began)
    return shares


def measure_tree(tree: Path) -> dict[str, float]:
    """Return the shares with the package of a tree of sources, measured in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tree, ROOT))), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.perf.overhead", "--shares"]
    result = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
    shares: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return shares


def extract(commit: str, folder: Path) -> Path:
    """Write the package as of a commit into a folder and return the folder."""
    command = ["git", "archive", commit, "robustcaps"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)  # noqa: S603
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def compare(trees: Mapping[str, Path], rounds: int) -> pd.DataFrame:
    """Return a line per model and attack with the share in percent in each tree; the trees take turns."""
    measured = [{name: measure_tree(tree) for name, tree in trees.items()} for _ in range(rounds)]
    lines: list[dict[str, Any]] = []
    for model in MODELS:
        for attack in ATTACKS:
            case = f"{model} {attack}"
            shares = {name: 100 * statistics.median(one[name][case] for one in measured) for name in trees}
            bare = 100 * statistics.median(one["after"][f"{case} bare"] for one in measured)
            lines.append({"model": model, "attack": attack, **shares, "bare loop": bare, "rounds": rounds})
    return pd.DataFrame(lines)


def markdown(table: pd.DataFrame) -> str:
    """Return the table for readers."""
    trees = list(table.columns[2:-1])
    rows = [
        [str(line["model"]), str(line["attack"]), *(f"{line[name]:.1f} %" for name in trees)]
        for line in table.to_dict("records")
    ]
    caption = (
        f"CPU time outside the model's forward and backward passes, 1 thread, {SAMPLES} toys in batches of {BATCH}, "
        f"rounds: {table['rounds'].max()}:"
    )
    return f"{caption}\n\n" + grids_markdown([make_grid(["model", "attack", *trees], rows, numeric=trees)])


def has_commit(commit: str) -> bool:
    """Return whether the sources are a clone that holds a commit."""
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0  # noqa: S603


def measure_overhead(rounds: int = ROUNDS) -> str:
    """Compare this code with the earlier commit, write results/perf/overhead.csv and overhead.md; return the latter."""
    with tempfile.TemporaryDirectory() as folder:
        earlier = {"before": extract(EARLIER, Path(folder))} if has_commit(EARLIER) else {}
        table = compare(earlier | {"after": ROOT}, rounds)
    table.to_csv(RESULTS / "overhead.csv", index=False, float_format="%.3g")
    text = markdown(table)
    (RESULTS / "overhead.md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", action="store_true", help="only print the shares of the package on the path")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each tree, of which the median is taken")
    arguments = parser.parse_args()
    print(json.dumps(measure_shares()) if arguments.shares else measure_overhead(arguments.rounds))


if __name__ == "__main__":
    main()
