"""Two runs, one of which attacks harder, from Python and from the command line."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

import robustcaps as rc
from robustcaps.analysis.collection import write_collection
from robustcaps.cli.app import app
from robustcaps.errors import UserError
from robustcaps.registry import ATTACKS, DATASETS, MODELS
from tests.conftest import PLUGIN

SUITE = """
[[data]]
use = "dots"
limit = 30

[[models]]
use = "levels"

[[attacks]]
use = "clean"

[[attacks]]
use = "darken"
eps = [0.1, 0.3, 0.5]
share = SHARE

[[attacks]]
use = "EXTRA"
eps = 0.1
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The out folders of a run before and after a change of an attack."""
    folder = tmp_path_factory.mktemp("runs")
    plugin = folder / "tiny_plugin.py"
    plugin.write_text(PLUGIN)
    outs = []
    with pytest.MonkeyPatch.context() as patch:  # what the plugin registers is forgotten after the runs
        for registry in (ATTACKS, DATASETS, MODELS):
            registry.names("built-in ones")
            patch.setattr(registry, "_entries", dict(registry._entries))
        for name, share, extra in (("before", "0.1", "fgsm"), ("after", "1.0", "bim")):
            suite = folder / f"{name}.toml"
            suite.write_text(SUITE.replace("SHARE", share).replace("EXTRA", extra))
            outs.append(rc.run(suite, folder / name, plugins=[plugin]).out)
    return outs


@pytest.fixture
def copies(runs, tmp_path):
    """Copies of both that may be changed."""
    return [shutil.copytree(out, tmp_path / out.name) for out in runs]


def test_what_changed_is_named_and_paired(runs):
    comparison = rc.compare(*runs)
    changes = {tuple(line) for line in comparison.changes[["what", "name", "setting"]].to_numpy()}
    assert {("attack", "fgsm", ""), ("attack", "bim", ""), ("attack", "darken", "options.share")} <= changes
    table = comparison.differences
    assert table["measure"].iloc[0] == "robust AUC" and table["paired"].all() and set(table["n"]) == {30}
    auc = table.iloc[0]
    assert auc["difference"] < 0 and auc["difference_high"] < 0 and auc["p"] < 0.05
    cells = table[table["measure"] == "robust accuracy"]
    assert auc["difference"] == pytest.approx(cells["difference"].mean())  # darken is all that both have
    clean = table[table["measure"] == "clean accuracy"].iloc[0]
    assert (clean["difference"], clean["p"]) == (0, 1)
    first, *_, last = comparison.findings
    assert first.startswith("The robust AUC of levels on dots (linf) fell from ")
    assert last.startswith("No significant difference in ")


def test_the_other_way_round_differences_have_the_other_sign(runs):
    there, back = (rc.compare(*pair).differences for pair in (runs, runs[::-1]))
    assert back["difference"].to_numpy() == pytest.approx(-there["difference"].to_numpy())
    assert back["p"].to_numpy() == pytest.approx(there["p"].to_numpy())


def test_published_tables_are_compared_unpaired_and_it_is_said(copies):
    shutil.rmtree(copies[0] / "cells")
    comparison = rc.compare(*copies)
    assert len(comparison.differences) and not comparison.differences["paired"].any()
    (note,) = comparison.notes
    assert note.startswith("Compared from tables, not sample by sample: ") and "before has no cells" in note
    assert "unpaired" in comparison.markdown()
    assert "robust AUC" not in set(comparison.differences["measure"])  # other attacks: other worst cases


@pytest.mark.usefixtures("registries")
def test_other_samples_are_compared_unpaired(runs, tmp_path):
    plugin = runs[0].parent / "tiny_plugin.py"
    suite = tmp_path / "fewer.toml"
    suite.write_text((runs[0].parent / "before.toml").read_text().replace("limit = 30", "limit = 20"))
    fewer = rc.run(suite, tmp_path / "fewer", plugins=[plugin]).out
    comparison = rc.compare(runs[0], fewer)
    assert not comparison.differences["paired"].any() and "robust AUC" in set(comparison.differences["measure"])
    assert comparison.notes == ("Compared from tables, not sample by sample: the samples of dots differ.",)


def test_collections_are_compared_suite_by_suite(copies, tmp_path):
    for name, out in zip(("one", "two"), copies, strict=True):
        (tmp_path / name).mkdir()
        shutil.move(out, tmp_path / name / "suite")
        write_collection(tmp_path / name, "c", "C", ["suite"])
    assert len(rc.compare(tmp_path / "one", tmp_path / "two").differences)
    with pytest.raises(UserError, match="is a collection of suites"):
        rc.compare(tmp_path / "one", tmp_path / "two" / "suite")


def test_the_command_prints_and_writes_a_page(copies, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["compare", *map(str, copies)])
    assert result.exit_code == 0, result.output
    assert "Cells that differ significantly" in result.output and "options.share" in result.output
    page, text = ((copies[1] / f"compare.{ending}").read_text() for ending in ("html", "md"))
    assert "options.share" in page and "<script src" not in page and "page.css" not in page
    assert text.startswith("# From ") and "| robust AUC | dots | levels |" in text
    printed = CliRunner().invoke(app, ["compare", *map(str, copies), "--markdown"])
    assert printed.output.strip() == text.strip()


@pytest.mark.parametrize("words", [("missing", "before"), ("before", "missing"), ("before", "before")])
def test_what_is_no_run_is_one_line_and_exit_code_2(cli, copies, words):
    result = cli("compare", *words)
    assert result.returncode == 2 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
