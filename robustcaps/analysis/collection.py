"""What stands above the suites of a collection: which they are, what papers claim, and a page that leads to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robustcaps.analysis.claims import claims_markdown, judge_claims
from robustcaps.analysis.results import read_record
from robustcaps.errors import UserError
from robustcaps.utils.files import write_atomically

RECORD = "collection.json"
"""Which suites a folder holds the runs of."""


def write_collection(out: Path, name: str, title: str, suites: Sequence[str]) -> None:
    """Write down which suites of a collection have been run into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "title": title, "suites": list(suites)}
    write_atomically(out / RECORD, json.dumps(record, indent=2) + "\n")


def read_collection(out: Path) -> dict[str, Any] | None:
    """Return what is written down of a collection; None where a folder is not one's."""
    path = out / RECORD
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(record, dict) or not {"name", "title", "suites"} <= record.keys():
        raise UserError(f"{path}: not the record of a collection; run the collection again to renew it.")
    return record


def parts_of(out: Path) -> list[Path]:
    """Return the folders of runs in a collection's folder, or the folder itself where it is that of a run."""
    collection = read_collection(out)
    return [out] if collection is None else [out / name for name in collection["suites"]]


def write_overview(out: Path) -> list[Path]:
    """Write claims.csv, claims.md (where suites speak to a claim) and report.html of a collection; return the files."""
    from robustcaps.analysis.report import render_overview  # noqa: PLC0415  jinja2 is needed here only

    collection = read_collection(out)
    if collection is None:
        return []
    claims = judge_claims(out)
    texts = {"claims.csv": claims.to_csv(index=False), "claims.md": claims_markdown(claims)} if len(claims) else {}
    suites = [_describe(out, name) for name in collection["suites"]]
    texts["report.html"] = render_overview(collection, suites, claims)
    for name, text in texts.items():
        write_atomically(out / name, text)
    return [out / name for name in texts]


def _describe(out: Path, name: str) -> dict[str, Any]:
    """Return what the page tells of a suite: its title, how many cells it has, and its drawings."""
    record = read_record(out / name)
    drawings = sorted(path.relative_to(out).as_posix() for path in (out / name / "figures").glob("*.svg"))
    failed = sum(cell["status"] != "finished" for cell in record["cells"])
    title = record["suite"]["title"] or name
    return {"name": name, "title": title, "cells": len(record["cells"]), "failed": failed, "drawings": drawings}
