"""Judge every model of the collection; write results/calibration; fail if one is judged wrong.

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
from benchmarks.calibration.collection import COLLECTION, EPS, blobs, specimen
from robustcaps.utils.files import write_atomically
from robustcaps.utils.statistics import wilson

FOLDER = Path(__file__).parents[2] / "results" / "calibration"
IMAGES = 200


def judge(name: str, images: int = IMAGES) -> dict[str, object]:
    """Return the verdict on a model of the collection, beside its label, as a line."""
    model = specimen(name)
    began = time.perf_counter()
    verdict = rc.diagnose(model, blobs(images, seed=2), EPS)
    seconds = round(time.perf_counter() - began, 1)
    label = "masked" if COLLECTION[name].masked else "honest"
    flagged = " ".join(verdict.checks.loc[verdict.checks["flagged"], "check"])
    shares = {"clean": verdict.clean, "naive": verdict.naive, "corrected": verdict.corrected}
    return {"model": name, "label": label, "verdict": verdict.status, **shares, "seconds": seconds, "flagged": flagged}


def report(table: pd.DataFrame) -> str:
    """Return recall and false alarms with their intervals, and a line per model, as Markdown."""
    masked, honest = (table[table["label"] == label] for label in ("masked", "honest"))
    found, accused = (int((part["verdict"] == "masked").sum()) for part in (masked, honest))
    suspected = int((honest["verdict"] == "suspicious").sum())
    words = (
        f"Recall: {found} of {len(masked)} masked models are found ({_share(found, len(masked))}). "
        f"False alarms: {accused} of {len(honest)} honest ones are called masked ({_share(accused, len(honest))}), "
        f"{suspected} suspicious. {IMAGES} images of 28x28, eps {EPS:g}; "
        f"{table['seconds'].median():.0f} s a model (median), {table['seconds'].max():.0f} s at most."
    )
    lines = [
        words,
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


def wrong(table: pd.DataFrame) -> list[str]:
    """Return the models that are judged wrong: masked ones not found, honest ones not trusted."""
    right = table["label"].map({"masked": "masked", "honest": "trusted"})
    return list(table.loc[table["verdict"] != right, "model"])


def main() -> int:
    """Judge all, write the table and the report, print the latter; return 1 if a model was judged wrong."""
    console = Console(emoji=False)
    table = pd.DataFrame([judge(name) for name in track(COLLECTION, "judging", console=console)])
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_atomically(FOLDER / "verdicts.csv", table.to_csv(index=False, float_format="%.6g"))
    write_atomically(FOLDER / "report.md", report(table))
    console.print(report(table), markup=False, highlight=False, soft_wrap=True)
    mistakes = wrong(table)
    if mistakes:
        console.print(f"Judged wrong: {', '.join(mistakes)}.", style="red", markup=False)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
