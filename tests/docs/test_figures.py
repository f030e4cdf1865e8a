"""The figures of README and manual are those of the reference run."""

from __future__ import annotations

import re
from inspect import isclass
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pydantic import BaseModel

import robustcaps as rc
from benchmarks.perf import table
from docs.generate.catalogue import attack_overview, models, weights
from docs.generate.command_line import command_line
from docs.generate.markdown import ROOT, plain
from docs.generate.readme import README, filled
from docs.generate.results import leaderboard
from docs.generate.suite_keys import TABLES, meaning, type_name
from robustcaps.diagnostics.kinds.lookup import kind_of
from robustcaps.models.zoo import shipped_cards
from robustcaps.suite import spec as suite_spec
from robustcaps.training_options import TrainingOptions

TEXT = README.read_text(encoding="utf-8")


def test_the_findings_in_the_readme_are_those_of_the_reference_run():
    assert filled(TEXT) == TEXT
    assert len(re.findall(r"^\d\. ", TEXT, re.MULTILINE)) == 5
    assert len(TEXT.splitlines()) <= 200


PAGES = [README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", [page for page in PAGES if "generated" not in page.parts], ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)|{include} (.+)|<([^<>]+\.csv)>", text):
        linked = next(filter(None, target))
        if "://" not in linked and "generated/" not in linked:
            assert (page.parent / linked).exists(), linked


def test_the_speeds_in_the_manual_are_those_that_were_measured():
    measured = pd.read_csv(ROOT / "results" / "perf" / "table.csv")
    assert (ROOT / "results" / "perf" / "table.md").read_text(encoding="utf-8") == table.markdown(measured)
    textbook = measured["implementation"] == "textbook"
    assert (measured.loc[textbook, "training_ratio"] == 1).all() and set(measured["model"][textbook]) == set(
        measured["model"]
    )


def test_our_sweeps_take_the_passes_that_the_manual_says_and_leave_what_others_leave():
    passes = pd.read_csv(ROOT / "results" / "perf" / "passes.csv").set_index(["attack", "by"])
    ours, theirs = passes.xs("robustcaps", level="by"), passes.drop("robustcaps", level="by").groupby("attack")
    assert ours.loc["fgsm", "forwards"] <= 12 and ours.loc["fgsm", "backwards"] <= 1
    for cost in ("forwards", "backwards"):
        assert ours.loc["bim", cost] <= theirs[cost].min()["bim"] / 3
    for (attack, _), robust in passes["robust"].items():
        own = [float(share) for share in ours.loc[attack, "robust"].split()]
        assert [float(share) for share in robust.split()] == pytest.approx(own, abs=0.2001)


def test_the_numbers_of_attacks_and_checks_in_the_readme_are_right():
    adapters = pytest.importorskip("robustcaps.attacks.adapters.torchattacks_attacks")
    others = pytest.importorskip("robustcaps.attacks.adapters.foolbox_attacks")
    assert f"{len(adapters.ATTACK_SPECS) + len(others.ATTACK_SPECS)} attacks of torchattacks and foolbox" in TEXT
    checks = [name for name in rc.list_diagnostics() if kind_of(name).name == "verdict"]
    assert f"{len(checks)} checks" in TEXT


def test_every_key_of_a_suite_is_explained():
    missing = [
        (model.__name__, name) for model in TABLES.values() for name in model.model_fields if not meaning(model, name)
    ]
    assert missing == []


def test_every_table_of_a_suite_is_listed():
    spec = [each for each in vars(suite_spec).values() if isclass(each) and issubclass(each, BaseModel)]
    assert {each for each in spec if each not in (BaseModel, TrainingOptions, suite_spec.Spec)} == set(TABLES.values())


@pytest.mark.parametrize(
    ("hint", "words"), [(list[int] | None, "list of integer"), (int | str, "integer or text"), (Path, "path")]
)
def test_types_are_said_in_words(hint, words):
    assert type_name(hint) == words


def test_the_catalogue_lists_everything():
    assert all(f"### `{name}`" in models() for name in ("cnn", "matrix-capsnet-small"))
    assert "| [`transfer`](#transfer) | linf, l2, l1, l0 |" in attack_overview()
    assert weights().count("\n") == len(shipped_cards()) + 2
    assert "## robustcaps data get" in command_line() and "`--eps EPS`" in command_line()


def test_the_leaderboard_is_sorted_by_corrected_accuracy():
    for part in leaderboard().split("###")[1:]:
        shares = [float(line.split("|")[4].split()[0]) for line in part.splitlines() if line.startswith("| `")]
        assert shares == sorted(shares, reverse=True) and shares


def test_a_sentence_holds_no_markup_but_code():
    assert plain("a*b <c> `x_y*`") == r"a\*b \<c\> `x_y*`"


def test_the_citation_is_valid():
    """The keys that CFF 1.2.0 requires, and none of the others misspelt."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    required = {"cff-version", "message", "title", "authors"}
    known = {"type", "abstract", "version", "license", "keywords", "date-released", "repository-code", "url"}
    assert required <= set(citation) <= required | known
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
