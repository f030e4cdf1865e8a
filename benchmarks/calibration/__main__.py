"""Diagnose every model of the collection, write results/calibration, and fail if a verdict is wrong.

`python -m benchmarks.calibration` takes about an hour on one core. `--seed N` repeats the diagnoses with another seed;
the report puts all seeds side by side. `--limit N` takes fewer images, and `--only NAME` (repeatable) some of the
models; both print the report without writing it. Slow tests prove the labels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import track

import robustcaps as rc
from benchmarks.calibration.collection import COLLECTION, build_model
from benchmarks.calibration.labels import accuracy
from robustcaps.utils.files import write_atomically
from robustcaps.utils.statistics import wilson

FOLDER = Path(__file__).parents[2] / "results" / "calibration"
IMAGES = 200
CLOSE = 0.05
"""Largest distance of a corrected accuracy to the best attack known that counts as close."""


def diagnose_model(name: str, images: int = IMAGES, *, seed: int = 0, proven: float | None = None) -> dict[str, object]:
    """Return a table row with the label of a model, the verdict on it, and the accuracy under the label's proof.

    `proven` is that accuracy where it is known, since it does not depend on the seed.
    """
    labelled, model = COLLECTION[name], build_model(name)
    data = labelled.load_data(images)
    start = time.process_time()
    verdict = rc.diagnose(model, data, labelled.eps, seed=seed)
    seconds = round(time.process_time() - start, 1)
    label = "masked" if labelled.masked else "honest"
    flagged = " ".join(verdict.checks.loc[verdict.checks["flagged"], "check"])
    proof = proven
    if proof is None:
        proof = accuracy(model, labelled.proof(model, data, labelled.eps), data.labels)
    shares = {"clean": verdict.clean, "naive": verdict.naive, "corrected": verdict.corrected, "proof": proof}
    return {
        "model": name,
        "seed": seed,
        "data": labelled.data,
        "n": len(data),
        "eps": labelled.eps,
        "label": label,
        "verdict": verdict.status,
        "confidence": verdict.confidence,
        **shares,
        "cpu_seconds": seconds,
        "flagged": flagged,
    }


def report(table: pd.DataFrame) -> str:
    """Return recall and false alarms of every seed with their confidence intervals, and one row per model, as Markdown.

    The accuracies of a model are those of the first seed; its verdicts are those of every seed.
    """
    seeds = sorted(table["seed"].unique())
    verdicts = table.sort_values("seed").groupby("model", sort=False)["verdict"].agg(list)
    same = sum(len(set(each)) == 1 for each in verdicts)
    legend = (
        f"{table['n'].max()} images a model. *Close* counts the masked models whose corrected accuracy is at most "
        f"{100 * CLOSE:.0f} points above that of the attack that proves the label. CPU s: median and maximum."
    )
    lines = [
        legend,
        "",
        "| seed | masked models found | honest ones called masked | honest ones called suspicious | close | CPU s |",
        "|---:|---|---|---:|---:|---:|",
        *(_seed_row(seed, table[table["seed"] == seed]) for seed in seeds),
        "",
    ]
    if len(seeds) > 1:
        lines += [f"All {len(seeds)} seeds give the same verdict on {_share(same, len(verdicts))} models.", ""]
    lines += [
        "| model | data | eps | label | verdict | confidence | naive % | corrected % | proof % | CPU s | flagged |",
        "|---|---|---:|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for line in table[table["seed"] == seeds[0]].to_dict("records"):
        shares = " | ".join(f"{100 * line[share]:.1f}" for share in ("naive", "corrected", "proof"))
        given = list(dict.fromkeys(verdicts[line["model"]]))
        known = f"{line['model']} | {line['data']} | {line['eps']:g} | {line['label']} | {' or '.join(given)}"
        flagged = str(line["flagged"]).replace(" ", ", ")
        lines.append(f"| {known} | {line['confidence']:.2f} | {shares} | {line['cpu_seconds']:.0f} | {flagged} |")
    return "\n".join(lines) + "\n"


def _seed_row(seed: int, table: pd.DataFrame) -> str:
    masked, honest = (table[table["label"] == label] for label in ("masked", "honest"))
    found, alarms = (int((part["verdict"] == "masked").sum()) for part in (masked, honest))
    suspected = int((honest["verdict"] == "suspicious").sum())
    close = int((masked["corrected"] <= masked["proof"] + CLOSE).sum())
    seconds = f"{table['cpu_seconds'].median():.0f}, {table['cpu_seconds'].max():.0f}"
    shares = f"{_share(found, len(masked))} | {_share(alarms, len(honest))} | {suspected} of {len(honest)}"
    return f"| {seed} | {shares} | {close} of {len(masked)} | {seconds} |"


def _share(count: int, n: int) -> str:
    low, high = (100 * float(bound) for bound in wilson(count, n))
    return f"{count} of {n} ({100 * count / max(1, n):.0f} %, Wilson 95 %: {low:.0f} to {high:.0f})"


def known_proofs(seed: int, images: int) -> dict[str, float]:
    """Return the accuracies under the proofs that the diagnoses with seed 0 found, for the other seeds."""
    path = FOLDER / "verdicts-seed-0.csv"
    if seed == 0 or images != IMAGES or not path.exists():
        return {}
    return dict(pd.read_csv(path).set_index("model")["proof"])


def misjudged_models(table: pd.DataFrame) -> list[str]:
    """Return the models with a wrong verdict: masked ones not found, honest ones not trusted."""
    expected = table["label"].map({"masked": "masked", "honest": "trusted"})
    return list(table.loc[table["verdict"] != expected, "model"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Diagnose the models, print the report and write that of the whole collection; return 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description="Are the verdicts right?")
    parser.add_argument("--only", action="append", choices=list(COLLECTION), metavar="NAME", help="a model; repeatable")
    parser.add_argument("--limit", type=int, default=IMAGES, help=f"images per model (default: {IMAGES})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the diagnosis (default: 0)")
    chosen = parser.parse_args(arguments)
    console = Console(emoji=False)
    names = track(chosen.only or COLLECTION, "diagnosing", console=console)
    proofs = known_proofs(chosen.seed, chosen.limit)
    rows = [diagnose_model(name, chosen.limit, seed=chosen.seed, proven=proofs.get(name)) for name in names]
    table = pd.DataFrame(rows)
    mistakes = misjudged_models(table)
    if not chosen.only and chosen.limit == IMAGES:
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_atomically(FOLDER / f"verdicts-seed-{chosen.seed}.csv", table.to_csv(index=False, float_format="%.6g"))
        table = pd.concat(
            [pd.read_csv(path, keep_default_na=False) for path in sorted(FOLDER.glob("verdicts-seed-*.csv"))]
        )
        write_atomically(FOLDER / "report.md", report(table))
    console.print(report(table), markup=False, highlight=False, soft_wrap=True)
    if mistakes:
        console.print(f"Wrong verdicts: {', '.join(mistakes)}.", style="red", markup=False)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
