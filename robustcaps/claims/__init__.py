"""What papers claim, and what we find: a table at a glance, from the CSV files of finished runs alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from robustcaps.claims.papers import CLAIMS, Claim
from robustcaps.errors import UserError
from robustcaps.markdown import markdown_table

__all__ = ["claims_markdown", "judge_claims"]

COLUMNS = ["paper", "claim", "data", "finding", "evidence", "suite"]


def judge_claims(folder: Path) -> pd.DataFrame:
    """Return a line per claim and dataset: whether our figures agree with it, differ, or leave it undecided, and why.

    `folder` has a run's out folder per suite (attacks/, trust/, ...). A claim without the suite, the table or the
    models in it that it is about has no line.
    """
    wanted = dict.fromkeys(folder / claim.suite / f"{claim.table}.csv" for claim in CLAIMS)
    tables = {path: pd.read_csv(path) for path in wanted if path.is_file()}
    return pd.DataFrame([line for claim in CLAIMS for line in _judged(claim, folder, tables)], columns=COLUMNS)


def _judged(claim: Claim, folder: Path, tables: dict[Path, pd.DataFrame]) -> Iterator[dict[str, str]]:
    """Judge a claim on each dataset of its table."""
    path = folder / claim.suite / f"{claim.table}.csv"
    if path not in tables:
        return
    for name, lines in tables[path].groupby("data", sort=False):
        data = str(name)
        if claim.data not in (None, data):
            continue
        try:
            judgement = claim.judge(lines)
        except KeyError as error:
            raise UserError(f"{path}: a table of an older version ({error}); run {claim.suite} again.") from error
        if judgement:
            told = {"paper": claim.paper.cite(data), "claim": claim.words, "data": data}
            yield {**told, **judgement._asdict(), "suite": claim.suite}


def claims_markdown(table: pd.DataFrame) -> str:
    """Return judged claims as a Markdown table, findings that differ in bold."""
    head = ["paper", "claim", "data", "we find", "evidence", "suite"]
    lines = [
        [f"**{cell}**" if cell == "differs" else str(cell) for cell in line]
        for line in table[COLUMNS].itertuples(index=False)
    ]
    return markdown_table(head, lines)
