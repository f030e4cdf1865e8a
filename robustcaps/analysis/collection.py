"""The results of a collection of suites: the `Results` of each, the claims of papers, and an overview page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps.analysis.claims import claims_markdown, judge_claims
from robustcaps.analysis.records import COLLECTION_RECORD, read_collection_record
from robustcaps.analysis.results import Results
from robustcaps.utils.files import json_checksum, write_atomically


class CollectionResults:
    """What the runs of a collection found: `suites` has the results of each by its name."""

    def __init__(self, out: Path | str) -> None:
        self.out = Path(out)
        self.record = read_collection_record(self.out)
        self.suites = {name: Results(self.out / name) for name in self.record["suites"]}

    @cached_property
    def claims(self) -> pd.DataFrame:
        """One line per claim of a paper and dataset: whether these results agree, differ or leave it undecided."""
        return judge_claims(self.suites)

    @property
    def problems(self) -> list[str]:
        """The suites that have not been run, and the cells of the others that no table shows, with the reasons."""
        missing = [name for name in self.record["planned"] if name not in self.suites]
        cells = [f"{name}: {problem}" for name, suite in self.suites.items() for problem in suite.problems]
        return [*cells, *(f"{name}: this suite has not been run yet" for name in missing)]

    def write_overview(self) -> list[Path]:
        """Write claims.csv, claims.md (where suites speak to a claim) and report.html; return the files."""
        from robustcaps.analysis.report import render_overview  # noqa: PLC0415  jinja2 is needed here only

        texts = {}
        if len(self.claims):
            texts = {"claims.csv": self.claims.to_csv(index=False), "claims.md": claims_markdown(self.claims)}
        texts["report.html"] = render_overview(
            self.record, [_describe(each) for each in self.suites.values()], self.claims
        )
        for name, text in texts.items():
            write_atomically(self.out / name, text)
        return [self.out / name for name in texts]


def load_results(out: Path | str) -> Results | CollectionResults:
    """Return the results in the out folder of a run, or of a collection of suites.

    Args:
        out: The folder that `robustcaps run` (or `rc.run`) wrote into.

    Returns:
        A `Results`, or a `CollectionResults` whose `suites` are one `Results` each.
    """
    return CollectionResults(out) if (Path(out) / COLLECTION_RECORD).exists() else Results(out)


def all_results(results: Results | CollectionResults) -> list[Results]:
    """Return the results of a run as a list, or those of every suite of a collection that has any."""
    if isinstance(results, Results):
        return [results]
    return [suite for suite in results.suites.values() if suite.has_tables]


def write_collection(out: Path, name: str, title: str, suites: Sequence[str], planned: Sequence[str] = ()) -> None:
    """Record which suites of a collection have been run into a folder, and which are planned."""
    out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"name": name, "title": title, "suites": list(suites), "planned": list(planned or suites)}
    record["checksum"] = json_checksum(record)
    write_atomically(out / COLLECTION_RECORD, json.dumps(record, indent=2) + "\n")


def _describe(results: Results) -> dict[str, Any]:
    """Return what the page shows of a suite: its title, how many cells it has, and its figures."""
    record, name = results.record, results.out.name
    drawings = sorted(f"{name}/figures/{path.name}" for path in (results.out / "figures").glob("*.svg"))
    failed = len(results.problems)
    title = record["suite"]["title"] or name
    return {"name": name, "title": title, "cells": len(record["cells"]), "failed": failed, "drawings": drawings}
