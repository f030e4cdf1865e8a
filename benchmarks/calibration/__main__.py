"""Diagnose every model of the collection, write results/calibration, and fail if a verdict is wrong.

`python -m benchmarks.calibration` takes about a quarter of an hour. The labels are proven by the slow tests.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.progress import track

import robustcaps as rc
from benchmarks.calibration.collection import COLLECTION, build_model
from benchmarks.calibration.networks import EPS, blobs
from robustcaps.utils.files import write_atomically
from robustcaps.utils.statistics import wilson

FOLDER = Path(__file__).parents[2] / "results" / "calibration"
IMAGES = 200


def diagnose_model(name: str, images: int = IMAGES) -> dict[str, object]:
    """Return a table row with the label of a model and the verdict on it."""
    model = build_model(name)
    start = time.perf_counter()
    verdict = rc.diagnose(model, blobs(images, seed=2), EPS)
    seconds = round(time.perf_counter() - start, 1)
    label = "masked" if COLLECTION[name].masked else "honest"
    flagged = " ".join(verdict.checks.loc[verdict.checks["flagged"], "check"])
    shares = {"clean": verdict.clean, "naive": verdict.naive, "corrected": verdict.corrected}
    return {"model": name, "label": label, "verdict": verdict.status, **shares, "seconds": seconds, "flagged": flagged}


def report(table: pd.DataFrame) -> str:
    """Return recall and false alarms with their confidence intervals, and one table row per model, as Markdown."""
    masked, honest = (table[table["label"] == label] for label in ("masked", "honest"))
    found, alarms = (int((part["verdict"] == "masked").sum()) for part in (masked, honest))
    suspected = int((honest["verdict"] == "suspicious").sum())
    summary = (
        f"Recall: {found} of {len(masked)} masked models are found ({_share(found, len(masked))}). "
        f"False alarms: {alarms} of {len(honest)} honest ones are called masked ({_share(alarms, len(honest))}), "
        f"{suspected} suspicious. {IMAGES} images of 28x28, eps {EPS:g}; "
        f"{table['seconds'].median():.0f} s a model (median), {table['seconds'].max():.0f} s at most."
    )
    lines = [
        summary,
        "",
        "| model | label | verdict | naive % | corrected % | seconds | flagged |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for line in table.to_dict("records"):
        shares = f"{100 * line['naive']:.1f} | {100 * line['corrected']:.1f} | {line['seconds']:.0f}"
        flagged = str(line["flagged"]).replace(" ", ", ")
        lines.append(f"| {line['model']} | {line['label']} | {line['verdict']} | {shares} | {flagged} |")
    return "\n".join(lines) + "\n"


def _share(count: int, n: int) -> str:
    low, high = wilson(count, n)
    return f"{100 * count / n:.0f} %, Wilson 95 %: {100 * float(low):.0f} to {100 * float(high):.0f}"


def misjudged_models(table: pd.DataFrame) -> list[str]:
    """Return the models with a wrong verdict: masked ones not found, honest ones not trusted."""
    expected = table["label"].map({"masked": "masked", "honest": "trusted"})
    return list(table.loc[table["verdict"] != expected, "model"])


def main() -> int:
    """Diagnose all models, write and print the report; return 1 if a verdict is wrong."""
    console = Console(emoji=False)
    table = pd.DataFrame([diagnose_model(name) for name in track(COLLECTION, "diagnosing", console=console)])
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
