"""Diagnose every model of the collection, write results/calibration, and fail if a verdict is wrong.

`python -m benchmarks.calibration` takes about an hour on one core; `--limit N` takes fewer images. `--only NAME`
(repeatable) diagnoses some of the models, and prints the report without writing it. Slow tests prove the labels.
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


def diagnose_model(name: str, images: int = IMAGES, *, seed: int = 0) -> dict[str, object]:
    """Return a table row with the label of a model, the verdict on it, and the accuracy under the label's proof."""
    labelled, model = COLLECTION[name], build_model(name)
    data = labelled.load_data(images)
    start = time.process_time()
    verdict = rc.diagnose(model, data, labelled.eps, seed=seed)
    seconds = round(time.process_time() - start, 1)
    label = "masked" if labelled.masked else "honest"
    flagged = " ".join(verdict.checks.loc[verdict.checks["flagged"], "check"])
    proof = accuracy(model, labelled.proof(model, data, labelled.eps), data.labels)
    shares = {"clean": verdict.clean, "naive": verdict.naive, "corrected": verdict.corrected, "proof": proof}
    return {
        "model": name,
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
    """Return recall and false alarms with their confidence intervals, and one table row per model, as Markdown."""
    masked, honest = (table[table["label"] == label] for label in ("masked", "honest"))
    found, alarms = (int((part["verdict"] == "masked").sum()) for part in (masked, honest))
    suspected = int((honest["verdict"] == "suspicious").sum())
    close = int((masked["corrected"] <= masked["proof"] + CLOSE).sum())
    summary = (
        f"Recall: {found} of {len(masked)} masked models are found ({_share(found, len(masked))}). "
        f"False alarms: {alarms} of {len(honest)} honest ones are called masked ({_share(alarms, len(honest))}), "
        f"{suspected} suspicious. For {close} of {len(masked)} masked models, the corrected accuracy is at most "
        f"{100 * CLOSE:.0f} points above that of an attack that knows the secret. "
        f"{table['n'].max()} images a model. "
        f"CPU time: {table['cpu_seconds'].median():.0f} s a model (median), {table['cpu_seconds'].max():.0f} s at most."
    )
    lines = [
        summary,
        "",
        "| model | data | eps | label | verdict | confidence | naive % | corrected % | proof % | CPU s | flagged |",
        "|---|---|---:|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for line in table.to_dict("records"):
        shares = " | ".join(f"{100 * line[share]:.1f}" for share in ("naive", "corrected", "proof"))
        known = f"{line['model']} | {line['data']} | {line['eps']:g} | {line['label']} | {line['verdict']}"
        flagged = str(line["flagged"]).replace(" ", ", ")
        lines.append(f"| {known} | {line['confidence']:.2f} | {shares} | {line['cpu_seconds']:.0f} | {flagged} |")
    return "\n".join(lines) + "\n"


def _share(count: int, n: int) -> str:
    low, high = wilson(count, n)
    return f"{100 * count / max(1, n):.0f} %, Wilson 95 %: {100 * float(low):.0f} to {100 * float(high):.0f}"


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
    table = pd.DataFrame([diagnose_model(name, chosen.limit, seed=chosen.seed) for name in names])
    if not chosen.only and chosen.seed == 0:
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_atomically(FOLDER / "verdicts.csv", table.to_csv(index=False, float_format="%.6g"))
        write_atomically(FOLDER / "report.md", report(table))
    console.print(report(table), markup=False, highlight=False, soft_wrap=True)
    mistakes = misjudged_models(table)
    if mistakes:
        console.print(f"Wrong verdicts: {', '.join(mistakes)}.", style="red", markup=False)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
