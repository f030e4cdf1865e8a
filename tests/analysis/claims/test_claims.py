from __future__ import annotations

import subprocess
import sys

import pandas as pd
import pytest

from robustcaps.analysis.claims import (
    COLUMNS,
    claim_summary_markdown,
    claims_markdown,
    judge_claims,
    summarise_claims,
)
from robustcaps.analysis.tables.comparisons import compare_models
from robustcaps.analysis.tables.perturbation_norms import compare_norms, smallest_norms
from robustcaps.diagnostics.kinds.viewpoints import tabulate_views
from robustcaps.errors import UserError
from tests.analysis.claims.published_tables import CNN, MATRIX, VECTOR, load, record, smallest, sweep, views, write


def test_a_suite_that_was_not_run_has_no_lines(tmp_path):
    record(tmp_path / "attacks")  # all of its cells failed
    for suites in ({}, load(tmp_path)):
        table = judge_claims(suites)
        assert table.empty and table.columns.tolist() == COLUMNS
        assert "0 judgements" in claims_markdown(table)
    rows = pd.concat([sweep({model: [0.5]}, "fgsm") for model in ("one", "another")])
    write(tmp_path, "attacks", "comparisons", compare_models(rows))  # of other models
    assert judge_claims(load(tmp_path)).empty


def test_a_table_of_an_older_version_is_named(tmp_path):
    rows = pd.concat([smallest(VECTOR, 1.0), smallest(CNN, 1.0)])
    write(tmp_path, "minimal-l2", "sizes", compare_norms(smallest_norms(rows)).drop(columns="found_first"))
    with pytest.raises(UserError, match=r"sizes\.csv: a table of an older version .* Run minimal-l2 again\."):
        judge_claims(load(tmp_path))


def test_every_dataset_has_its_line_and_what_differs_is_bold(tmp_path):
    rows = pd.concat(sweep({CNN: [0.9], MATRIX: [0.5]}, "fgsm", data=data) for data in ("toys", "mnist"))
    write(tmp_path, "attacks", "comparisons", compare_models(rows))
    table = judge_claims(load(tmp_path))
    assert table["data"].tolist() == ["toys", "mnist"] and set(table["suite"]) == {"attacks"}
    page = claims_markdown(table)
    assert "| paper | claim | data | we find | evidence | suite |\n" in page and page.count("**differs**") == 4


def test_in_the_summary_a_claim_is_one_line_with_a_finding_per_dataset(tmp_path):
    rows = pd.concat(sweep({CNN: [0.9], MATRIX: [0.5]}, "fgsm", data=data) for data in ("toys", "smallnorb"))
    write(tmp_path, "attacks", "comparisons", compare_models(rows))
    seen = [views(CNN, 0.2, 0.4, "azimuths"), views(MATRIX, 0.2, 0.25, "azimuths")]
    write(tmp_path, "viewpoints", "views", tabulate_views(pd.concat(seen), []))
    first, second = summarise_claims(judge_claims(load(tmp_path)))
    assert first.findings == {"toys": "differs", "smallnorb": "differs"}
    assert first.paper == "Hinton et al. 2018 (smallNORB)"  # not all of ours is the paper's own data
    assert second.findings == {"toys": "agrees", "smallnorb": ""} and "novel azimuths" in second.claim
    lines = claim_summary_markdown(judge_claims(load(tmp_path))).splitlines()
    assert lines[0] == "| paper | claim | toys | smallnorb |" and lines[2].endswith("| **differs** | **differs** |")
    assert lines[-1] == "3 judgements: 1 agrees, 2 differs, 0 undecided."


def test_claims_are_judged_without_torch(tmp_path):
    code = "import sys; from robustcaps.analysis.claims import judge_claims; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
