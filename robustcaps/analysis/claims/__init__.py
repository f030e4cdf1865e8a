"""What papers claim, and what we find: a table at a glance, from the CSV files of finished runs alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

import pandas as pd

from robustcaps.analysis.claims.evidence import Finding
from robustcaps.analysis.claims.papers import CLAIMS, Claim
from robustcaps.errors import UserError
from robustcaps.utils.markdown import markdown_table

__all__ = ["Glance", "claims_markdown", "glance", "glance_markdown", "judge_claims"]

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


class Glance(NamedTuple):
    """A claim, and what was found on each dataset: '' where nothing was."""

    paper: str
    claim: str
    findings: dict[str, str]


def glance(table: pd.DataFrame) -> list[Glance]:
    """Return judged claims a line each, with a finding per dataset, in the order of the table.

    Views of a dataset ('toys by azimuth') count as the dataset: the claim names them.
    """
    columns = list(dict.fromkeys(map(_dataset, table["data"])))
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        found = part["finding"].groupby(part["data"].map(_dataset)).agg(lambda words: ", ".join(dict.fromkeys(words)))
        paper = max(part["paper"], key=len)  # with its own datasets, where one of ours is another
        lines.append(Glance(str(paper), str(claim), {data: str(found.get(data, "")) for data in columns}))
    return lines


def _dataset(name: str) -> str:
    return name.partition(" by ")[0]


def glance_markdown(table: pd.DataFrame) -> str:
    """Return what was found of each claim on each dataset as a Markdown table, and how often they agree."""
    lines = glance(table)
    counts = table["finding"].value_counts()
    summed = ", ".join(f"{counts.get(word, 0)} {word}" for word in get_args(Finding))
    head = ["paper", "claim", *(lines[0].findings if lines else ())]
    cells = [[line.paper, line.claim, *map(_in_bold, line.findings.values())] for line in lines]
    return f"{markdown_table(head, cells)}\n{len(table)} judgements: {summed}.\n"


def claims_markdown(table: pd.DataFrame) -> str:
    """Return judged claims as Markdown: at a glance, then the evidence of each; findings that differ in bold."""
    head = ["paper", "claim", "data", "we find", "evidence", "suite"]
    lines = [[_in_bold(str(cell)) for cell in line] for line in table[COLUMNS].itertuples(index=False)]
    return f"{glance_markdown(table)}\nThe evidence, suite by suite:\n\n{markdown_table(head, lines)}"


def _in_bold(cell: str) -> str:
    return f"**{cell}**" if cell == "differs" else cell
