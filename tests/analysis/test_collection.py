"""Several suites in one file: each run into a folder of its own, with a page above them."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

import robustcaps as rc
from robustcaps.analysis.collection import CollectionResults, all_results, load_results, write_collection
from robustcaps.analysis.results import Results
from robustcaps.cli.app import main
from robustcaps.errors import UserError
from robustcaps.suite.spec import is_collection, load_collection

SUITE = """
title = "{title}"
[[data]]
use = "dots"
limit = 12
[[models]]
use = "levels"
[[models]]
use = "levels"
name = "blunt"
sharpness = 10.0
[[attacks]]
use = "{attack}"
eps = [0.05, 0.1]
"""


@pytest.fixture
def collection(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    for name, title, attack in (("one", "First", "fgsm"), ("two", "Second & <b>last</b>", "darken")):
        (inner / f"{name}.toml").write_text(SUITE.format(title=title, attack=attack))
    path = inner / "both.toml"
    path.write_text('title = "Both"\nsuites = ["one.toml", "two.toml"]\n')
    return path


def test_a_collection_is_run_suite_by_suite(registries, collection, plugin, tmp_path):
    result = rc.run(collection, tmp_path / "o", plugins=[plugin])
    assert [part.out.name for part in result.parts] == ["one", "two"]
    assert result.computed == 4 and result.reused == 0 and not result.failures
    assert set(result.table["suite"]) == {"one", "two"}
    for name in ("one", "two"):
        alone = rc.run(collection.parent / f"{name}.toml", tmp_path / f"{name}-alone", plugins=[plugin])
        pd.testing.assert_frame_equal(
            pd.read_csv(tmp_path / "o" / name / "table.csv"), pd.read_csv(alone.out / "table.csv")
        )
    again = rc.run(collection, tmp_path / "o", plugins=[plugin])
    assert again.computed == 0 and again.reused == 4


def test_the_page_above_leads_to_every_suite_and_escapes_their_titles(cli, collection, plugin, tmp_path):
    result = cli("run", collection, "--plugin", plugin, "--out", "o")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "o" / "report.html").read_text()
    for wanted in ("Both", 'href="one/report.html"', 'href="two/report.html"', "&lt;b&gt;last"):
        assert wanted in page
    assert (tmp_path / "o" / "two" / "report.html").is_file()
    for command in ("table", "report", "figures"):
        made = cli(command, "o")
        assert made.returncode == 0 and "o/two" in made.stdout, made.stderr


def test_a_collection_is_checked_as_a_whole(cli, collection, plugin):
    result = cli("check", collection, "--plugin", plugin)
    assert result.returncode == 0, result.stderr
    *_, last = result.stdout.strip().splitlines()
    assert "both.toml: fine. 2 suites, 4 cells, 96 rows" in last and "at most, on this machine" in last


def test_a_failing_cell_of_one_suite_leaves_the_others_alone(cli, collection, plugin, tmp_path):
    first = collection.parent / "one.toml"
    first.write_text(first.read_text().replace('"fgsm"', '"broken"'))
    result = cli("run", collection, "--plugin", plugin, "--out", "o")
    assert result.returncode == 1 and "no luck" in result.stdout
    assert (tmp_path / "o" / "two" / "table.csv").is_file()


MISTAKES = {
    "a mistake in a suite": (
        'suites = ["one.toml", "bad.toml"]',
        r"bad\.toml: attacks\[0\]\.use: unknown attack 'fgms'",
    ),
    "no such suite": ('suites = ["one.toml", "none.toml"]', r"none\.toml: no such suite file"),
    "the same twice": ('suites = ["one.toml", "one.toml"]', r"two suites are called 'one'"),
    "none": ("suites = []", r"suites: list should have at least 1 item"),
    "models beside suites": ('suites = ["one.toml"]\nmodels = []', r"unknown key 'models'"),
}


@pytest.mark.parametrize(("content", "words"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_before_anything_is_run(registries, collection, plugin, tmp_path, content, words):
    (collection.parent / "bad.toml").write_text(SUITE.format(title="", attack="fgms"))
    collection.write_text(content)
    with pytest.raises(UserError, match=words):
        rc.run(collection, tmp_path / "o", plugins=[plugin])
    assert not (tmp_path / "o").exists()


def test_a_suite_without_results_leaves_the_overview_of_the_others(registries, collection, plugin, tmp_path):
    """Claims are judged by a suite called 'attacks'; here none of its cells is finished."""
    (collection.parent / "attacks.toml").write_text(SUITE.format(title="All fail", attack="broken"))
    collection.write_text('suites = ["attacks.toml", "two.toml"]')
    result = rc.run(collection, tmp_path / "o", plugins=[plugin])
    assert [part.results is None for part in result.parts] == [True, False] and len(result.failures) == 2
    assert "All fail" in (tmp_path / "o" / "report.html").read_text()


def test_results_of_a_collection_are_those_of_its_suites(registries, collection, plugin, tmp_path):
    rc.run(collection, tmp_path / "o", plugins=[plugin])
    results = load_results(tmp_path / "o")
    assert isinstance(results, CollectionResults) and results.record["title"] == "Both"
    assert list(results.suites) == ["one", "two"] and all_results(results) == list(results.suites.values())
    for name, each in results.suites.items():
        pd.testing.assert_frame_equal(each.table, Results(tmp_path / "o" / name).table)
    assert results.claims.empty and results.write_overview() == [tmp_path / "o" / "report.html"]


def test_a_suite_is_a_collection_of_one(registries, suite, plugin, tmp_path):
    assert load_collection(suite).suites == [suite] and not is_collection(suite)
    rc.run(suite, tmp_path / "o", plugins=[plugin])
    results = load_results(str(tmp_path / "o"))
    assert isinstance(results, Results) and all_results(results) == [results]
    assert not (tmp_path / "o" / "collection.json").exists()


def test_a_damaged_record_is_named(tmp_path):
    shapes = (
        {"name": "x"},
        [],
        3,
        {"name": "x", "title": "", "suites": [3]},
        {"name": "x", "title": "", "suites": [".."]},
    )
    for content in ("{", "[" * 100_000, *map(json.dumps, shapes)):
        (tmp_path / "collection.json").write_text(content)
        with pytest.raises(UserError, match=r"collection\.json"):
            load_results(tmp_path)


def test_a_changed_record_is_noticed_and_the_next_run_renews_it(registries, collection, plugin, tmp_path):
    rc.run(collection, tmp_path / "o", plugins=[plugin])
    path = tmp_path / "o" / "collection.json"
    whole = path.read_text()
    for damaged in (whole.replace('"planned"', '"plannee"'), whole.replace('"checksum"', '"checksuM"'), "{"):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"collection\.json: .*(damaged: its checksum|cannot be read)"):
            load_results(tmp_path / "o")
    assert rc.run(collection, tmp_path / "o", plugins=[plugin]).computed == 0
    assert path.read_text() == whole


def test_a_suite_of_a_collection_that_is_gone_is_named(tmp_path):
    write_collection(tmp_path, "both", "Both", ["one"])
    with pytest.raises(UserError, match=r"one/run\.json: no such file"):
        load_results(tmp_path)


@pytest.mark.parametrize("command", ["table", "figures", "report"])
def test_what_is_missing_or_damaged_is_named_with_exit_code_1(
    registries, collection, plugin, tmp_path, monkeypatch, capsys, command
):
    rc.run(collection, tmp_path / "o", plugins=[plugin])
    first, second = sorted((tmp_path / "o" / "one" / "cells").glob("*.parquet"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    write_collection(tmp_path / "o", "both", "Both", ["one", "two"], ["one", "two", "three"])
    monkeypatch.setattr(sys, "argv", ["robustcaps", command, str(tmp_path / "o")])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    assert stop.value.code == 1 and told.count("missing: ") == 3
    assert (
        "its file is gone" in told and "damaged: its checksum" in told and "three: this suite has not been run" in told
    )
