"""What papers claim, and whether our results agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pandas as pd

from robustcaps.analysis.claims.evidence import Agreement
from robustcaps.analysis.claims.papers import CLAIMS, Claim
from robustcaps.analysis.results import Results
from robustcaps.errors import UserError
from robustcaps.utils.grid import GridCell, make_grid

__all__ = ["ClaimSummary", "claim_summary_markdown", "claims_markdown", "judge_claims", "summarise_claims"]

COLUMNS = ["paper", "claim", "data", "finding", "evidence", "suite"]


def judge_claims(suites: Mapping[str, Results]) -> pd.DataFrame:
    """Return a line per claim and dataset: whether our results agree with it, differ, or leave it undecided, and why.

    `suites` are the results of a collection by the names of its suites. A claim has no line without its suite, its
    table, or the models that it is about.
    """
    return pd.DataFrame([line for claim in CLAIMS for line in _judgements(claim, suites)], columns=COLUMNS)


def _judgements(claim: Claim, suites: Mapping[str, Results]) -> Iterator[dict[str, str]]:
    """Judge a claim on each dataset of its table."""
    results = suites.get(claim.suite)
    if results is None or not results.has_tables or results.tables[claim.table].empty:
        return
    table = results.tables[claim.table]
    for name, lines in table.groupby("data", sort=False, observed=True):
        data = str(name)
        if claim.data not in (None, data):
            continue
        try:
            judgement = claim.judge(lines)
        except KeyError as error:
            where = results.out / f"{claim.table}.csv"
            raise UserError(f"{where}: a table of an older version ({error}). Run {claim.suite} again.") from error
        if judgement:
            names = {"paper": claim.paper.cite(data), "claim": claim.words, "data": data}
            evidence = judgement.evidence + _routing_note(judgement.evidence, results.models, data)
            yield {**names, "finding": judgement.finding, "evidence": evidence, "suite": claim.suite}


def _routing_note(evidence: str, models: Sequence[Mapping[str, Any]], data: str) -> str:
    """Return whether the routing of the capsule networks in some evidence is alive, as far as the run recorded it."""
    states = {
        model["label"]: model["routing"]["status"]
        for model in models
        if model.get("routing") and model["data"] == data and model["label"] in evidence
    }
    return "".join(f"; routing of {label}: {status}" for label, status in states.items())


class ClaimSummary(NamedTuple):
    """A claim and the finding on each dataset, '' where there is none."""

    paper: str
    claim: str
    findings: dict[str, str]


def summarise_claims(table: pd.DataFrame) -> list[ClaimSummary]:
    """Return one line per judged claim, with a finding per dataset, in the order of the table.

    Subsets of a dataset by view ('toys by azimuth') count as the dataset: the claim names them.
    """
    columns = list(dict.fromkeys(map(_dataset, table["data"])))
    lines = []
    for claim, part in table.groupby("claim", sort=False, observed=True):
        found = part["finding"].groupby(part["data"].map(_dataset)).agg(lambda words: ", ".join(dict.fromkeys(words)))
        paper = max(part["paper"], key=len)  # with its own datasets, where one of ours is another
        lines.append(ClaimSummary(str(paper), str(claim), {data: str(found.get(data, "")) for data in columns}))
    return lines


def _dataset(name: str) -> str:
    return name.partition(" by ")[0]


def claim_summary_markdown(table: pd.DataFrame) -> str:
    """Return the finding of each claim on each dataset as Markdown, and how often they agree."""
    claims = summarise_claims(table)
    counts = table["finding"].value_counts()
    total = ", ".join(f"{counts.get(finding, 0)} {finding}" for finding in get_args(Agreement))
    columns = ["paper", "claim", *(claims[0].findings if claims else ())]
    rows = [[claim.paper, claim.claim, *map(_finding_cell, claim.findings.values())] for claim in claims]
    return make_grid(columns, rows, note=f"{len(table)} judgements: {total}.").markdown()


def claims_markdown(table: pd.DataFrame) -> str:
    """Return judged claims as Markdown: a summary, then the evidence of each; findings that differ in bold."""
    columns = ["paper", "claim", "data", "we find", "evidence", "suite"]
    rows = [[_finding_cell(str(cell)) for cell in line] for line in table[COLUMNS].itertuples(index=False)]
    evidence = make_grid(columns, rows, title="The evidence, suite by suite:").markdown()
    return f"{claim_summary_markdown(table)}\n{evidence}"


def _finding_cell(text: str) -> GridCell:
    return GridCell(text, bold=text == "differs")
