"""Runs in parts: merged, they are the whole run; what conflicts or is damaged is refused or named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import robustcaps as rc
from robustcaps.analysis.merge import Merge, PlannedCell
from robustcaps.cli.app import app
from robustcaps.execution.runner import RunOptions, execute_suite
from robustcaps.execution.store import Store
from robustcaps.suite.resolve import RuntimeConfig
from robustcaps.suite.shard import Part
from robustcaps.utils.files import json_checksum
from robustcaps.utils.folder_lock import FolderLock
from tests.conftest import PLUGIN, SUITE, restored_registries

from .test_runner import record_of
from .test_shards import assert_same_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A suite and a plugin, run as a whole and in three parts."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "tiny.toml").write_text("batch_size = 4\n" + SUITE + '\n[[diagnostics]]\nuse = "gradients"\n')
    (folder / "plugin.py").write_text(PLUGIN)
    with restored_registries():
        compute(folder / "tiny.toml", folder / "whole", folder / "plugin.py")
        for number in (1, 2, 3):
            compute(folder / "tiny.toml", folder / f"part{number}", folder / "plugin.py", f"{number}/3")
        yield folder


@pytest.fixture
def suite(folder, tmp_path):
    return Path(shutil.copy(folder / "tiny.toml", tmp_path / "tiny.toml"))


@pytest.fixture
def plugin(folder):
    return folder / "plugin.py"


@pytest.fixture
def whole(folder):
    return folder / "whole"


@pytest.fixture
def parts(folder, tmp_path):
    return [shutil.copytree(folder / f"part{number}", tmp_path / f"part{number}") for number in (1, 2, 3)]


def compute(suite, out, plugin, part=None, shard_size=8):
    config = RuntimeConfig(plugins=(plugin,), device="cpu")
    with FolderLock(out) as lock:
        parsed = None if part is None else Part.parse(part)
        return execute_suite(suite, lock, RunOptions(config, "", shard_size=shard_size, part=parsed))


def test_parts_merge_to_the_whole_run_in_any_order(suite, plugin, tmp_path, whole, parts):
    shards = [len(list((part / "shards").glob("*"))) for part in parts]
    assert all(shards) and all(record_of(part)["part"] == f"{n}/3" for n, part in enumerate(parts, start=1))
    out = tmp_path / "merged"
    assert Merge(out, parts[::-1]).write() == []
    assert_same_rows(out, whole)
    record = record_of(out)
    assert {cell["status"] for cell in record["cells"]} == {"finished"} and record["checksum"] == json_checksum(record)
    assert [part["part"] for part in record["merged"]] == ["3/3", "2/3", "1/3"] and "part" not in record
    again = compute(suite, out, plugin)
    assert again.computed == 0 and again.reused == 12


def test_missing_parts_may_follow_and_a_run_computes_what_is_left(suite, plugin, tmp_path, whole, parts):
    out = tmp_path / "merged"
    first = rc.merge(out, [parts[0]])
    assert first.problems and all("not computed yet" in problem for problem in first.problems)
    Merge(out, [parts[2], parts[0]]).write()
    last = compute(suite, out, plugin)
    assert 0 < last.shards <= 12 * 4 / 2
    assert_same_rows(out, whole)


def test_a_damaged_shard_of_a_part_is_named_and_missing(suite, plugin, tmp_path, whole, parts):
    victim = min((parts[1] / "shards").iterdir())
    victim.write_bytes(victim.read_bytes()[:-30])
    result = CliRunner().invoke(app, ["merge", str(tmp_path / "m"), *map(str, parts)])
    assert result.exit_code == 1 and f"{victim.name}: damaged" in result.output.replace("\n", "")
    assert sum(cell["status"] == "unfinished" for cell in record_of(tmp_path / "m")["cells"]) == 1
    compute(suite, tmp_path / "m", plugin)
    assert_same_rows(tmp_path / "m", whole)


def changed(part, pattern):
    """Store other rows under the name of a cell or shard of a part, with a checksum that is right."""
    file = min((part / pattern).glob("*.parquet"))

    named = PlannedCell(file.stem, "changed", {}, {}, None)
    rows = Store(part, pattern).read(named)
    Store(part, pattern).save(named, rows.assign(l2=rows["l2"] + 1), 1.0)


@pytest.mark.parametrize("kind", ["cells", "shards"])
def test_other_rows_of_the_same_samples_are_a_conflict(suite, plugin, tmp_path, parts, kind):
    whole_part = next(part for part in parts if any((part / kind).glob("*.parquet")))
    twin = shutil.copytree(whole_part, tmp_path / "twin")
    assert Merge(tmp_path / "fine", [whole_part, twin]).damages == [], "the same rows twice are no conflict"
    changed(twin, kind)
    with pytest.raises(rc.UserError, match=r"conflict: the rows of '.*' differ between .* and .*; remove one"):
        rc.merge(tmp_path / "m", [whole_part, twin])
    assert not (tmp_path / "m").exists()


def test_another_size_of_shards_is_no_conflict(suite, plugin, tmp_path, whole, parts):
    compute(suite, tmp_path / "other", plugin, "2/3", shard_size=12)
    out = tmp_path / "m"
    assert Merge(out, [parts[0], tmp_path / "other", parts[2]]).write() == []
    compute(suite, out, plugin)
    assert_same_rows(out, whole)


CHANGES = {
    "options": ("steps = 3", "steps = 4", r"'levels / dots / pgd.*' differs between .* \(attack\)"),
    "a cell": ('use = "clean"', 'use = "noise"\neps = [0.1]', r"'levels / dots / clean' is planned in .*part1 only"),
}


@pytest.mark.parametrize(("old", "new", "message"), CHANGES.values(), ids=CHANGES)
def test_parts_of_different_suites_are_a_conflict(suite, plugin, tmp_path, parts, old, new, message):
    suite.write_text(suite.read_text().replace(old, new))
    compute(suite, tmp_path / "other", plugin, "2/3")
    with pytest.raises(rc.UserError, match=f"conflict: {message}"):
        rc.merge(tmp_path / "m", [parts[0], tmp_path / "other"])
    assert not (tmp_path / "m").exists()


def test_what_is_no_part_is_refused(tmp_path):
    with pytest.raises(rc.UserError, match="name the folders"):
        rc.merge(tmp_path / "m", [])
    with pytest.raises(rc.UserError, match=r"nothing: no such file|nothing/.*json"):
        rc.merge(tmp_path / "m", [tmp_path / "nothing"])


def test_a_part_of_a_suite_that_trains_is_refused(suite, plugin, tmp_path):
    text = '[[data]]\nuse = "toys"\nlimit = 2\n[[models]]\nuse = "cnn-small"\ntrain = {epochs = 1}\n'
    (tmp_path / "t.toml").write_text(text + '[[attacks]]\nuse = "clean"\n')
    with pytest.raises(rc.UserError, match="--part: every part would train 'cnn-small'"):
        rc.run(tmp_path / "t.toml", tmp_path / "o", part="1/2", device="cpu")
    assert not (tmp_path / "o").exists()


def test_a_collection_is_merged_suite_by_suite(suite, plugin, tmp_path):
    text = suite.read_text().partition("[[attacks]]")[0] + '[[attacks]]\nuse = "fgsm"\neps = [0.05]\n'
    for name in "ab":
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "both.toml").write_text('suites = ["a.toml", "b.toml"]\n')
    for number in (1, 2):
        out = tmp_path / str(number)
        run = rc.run(tmp_path / "both.toml", out, plugins=[plugin], shard_size=4, part=f"{number}/2", device="cpu")
        assert run.shards == 16 and not (out / "report.html").exists()
    merged = rc.merge(tmp_path / "m", [tmp_path / "1", tmp_path / "2"])
    assert not merged.problems and (tmp_path / "m" / "report.html").exists()
    assert json.loads((tmp_path / "m" / "collection.json").read_text())["suites"] == ["a", "b"]
