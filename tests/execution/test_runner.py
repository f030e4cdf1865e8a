"""Runs of suites: interrupted, damaged and failing ones, in any order, end with the same rows."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import robustcaps as rc
from robustcaps.analysis.results import Results
from robustcaps.execution.engine_options import EngineOptions
from robustcaps.execution.run_progress import RunProgress
from robustcaps.suite.spec import load_suite


def digest_of_files(folder: Path, pattern: str = "*") -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob(pattern)}


def record_of(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "run.json").read_text())
    return record


@pytest.mark.usefixtures("registries")
def test_a_second_run_computes_nothing_and_gives_the_same_results(suite, plugin, tmp_path):
    first = rc.run(suite, tmp_path / "o", plugins=[plugin])
    cells = digest_of_files(tmp_path / "o" / "cells")
    second = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert (first.computed, first.reused) == (10, 0) and (second.computed, second.reused) == (0, 10)
    assert digest_of_files(tmp_path / "o" / "cells") == cells
    assert first.files == second.files and all(path.exists() for path in first.files)
    pd.testing.assert_frame_equal(first.table, second.table)
    assert second.results is not None
    pd.testing.assert_frame_equal(second.results.rows(), Results(tmp_path / "o").rows())


def slow_plugin(plugin: Path) -> Path:
    """The tiny plugin with a model that takes its time, so that a kill finds the run in the middle."""
    text = plugin.read_text().replace("import torch\n", "import time\nimport torch\n", 1)
    text += (
        "\nclass Slow(nn.Sequential):\n"
        "    def forward(self, images):\n"
        "        time.sleep(0.02)\n"
        "        return super().forward(images)\n"
    )
    text = text.replace("model = nn.Sequential(", "model = Slow(")
    plugin.write_text(text)
    return plugin


@pytest.mark.usefixtures("registries")
def test_kill_at_any_moment_and_run_again_gives_the_same_table(suite, plugin, tmp_path):
    slow_plugin(plugin)
    assert not rc.run(suite, tmp_path / "whole", plugins=[plugin]).failures
    code = "from robustcaps.cli.app import main; main()"
    command = [sys.executable, "-c", code, "run", str(suite), "--plugin", str(plugin), "--out", "o"]
    cells = tmp_path / "o" / "cells"
    finished: dict[str, tuple[int, bytes]] = {}
    for wanted in (1, 4, 7):
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ) as process:
            deadline = time.monotonic() + 120
            while len(list(cells.glob("*.parquet"))) < wanted and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        found = digest_of_files(cells, "*.parquet")
        assert finished.items() <= found.items()  # nothing that was finished is computed again
        finished = found
        assert record_of(tmp_path / "o")["finished_at"] is None
    assert wanted <= len(finished) < 10
    last = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert last.reused == len(finished) and last.computed == 10 - len(finished)
    assert finished.items() <= digest_of_files(cells, "*.parquet").items()
    assert (tmp_path / "o" / "table.csv").read_bytes() == (tmp_path / "whole" / "table.csv").read_bytes()


class DamageReports(RunProgress):
    """Collects the cells that are reported as damaged."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str]] = []

    def cell_damaged(self, cell, problem):
        self.reports.append((cell.id, problem))


DAMAGES = {
    "cut": lambda content, other: content[:100],
    "zeroed": lambda content, other: content[:40] + bytes(200) + content[240:],
    "another cell's": lambda content, other: other,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.usefixtures("registries")
def test_a_damaged_cell_is_computed_again(suite, plugin, tmp_path, damage):
    rc.run(suite, tmp_path / "o", plugins=[plugin])
    table = (tmp_path / "o" / "table.csv").read_bytes()
    victim, other, *_ = sorted((tmp_path / "o" / "cells").glob("*.parquet"))
    victim.write_bytes(damage(victim.read_bytes(), other.read_bytes()))
    (tmp_path / "o" / "run.json").write_text("{")
    progress = DamageReports()
    again = rc.run(suite, tmp_path / "o", plugins=[plugin], progress=progress)
    ((cell_id, problem),) = progress.reports
    assert cell_id == victim.stem and f"{victim.name}: damaged: " in problem
    assert (again.computed, again.reused, again.failures) == (1, 9, ())
    assert (tmp_path / "o" / "table.csv").read_bytes() == table


@pytest.mark.usefixtures("registries")
def test_a_failing_cell_does_not_stop_the_others_and_is_tried_again(suite, plugin, tmp_path):
    suite.write_text(suite.read_text() + '\n[[attacks]]\nuse = "broken"\neps = [0.1]\n')
    result = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert result.computed == 12 and [failure.violation for failure in result.failures] == ["raised"] * 2
    assert {failure.reason for failure in result.failures} == {"RuntimeError: no luck"}
    failures = list((tmp_path / "o" / "cells").glob("*.failed.json"))
    assert len(failures) == 2
    assert "Traceback" in json.loads(failures[0].read_text())["traceback"]
    record = record_of(tmp_path / "o")
    assert [cell["status"] for cell in record["cells"]] == [*["finished"] * 5, "failed"] * 2
    assert [cell["violation"] for cell in record["cells"]] == [*[""] * 5, "raised"] * 2
    honest = {"clean", "fgsm", "pgd", "fgsm to every class", "worst case of all"}
    assert set(pd.read_csv(tmp_path / "o" / "table.csv")["attack"]) == honest
    plugin.write_text(plugin.read_text().replace('raise RuntimeError("no luck")', "return images"))
    mended = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert (mended.computed, mended.reused, mended.failures) == (12, 0, ()), "models and data are in the same file"
    assert {cell["status"] for cell in record_of(tmp_path / "o")["cells"]} == {"finished"}


@pytest.mark.usefixtures("registries")
def test_order_and_batch_size_change_no_row(suite, plugin, tmp_path):
    rc.run(suite, tmp_path / "a", plugins=[plugin])
    blocks = suite.read_text().split("[[")
    head, data, models, attacks = blocks[0], blocks[1:2], blocks[2:4], blocks[4:]
    shuffled = tmp_path / "shuffled.toml"
    shuffled.write_text('name = "tiny"\n' + "[[".join([head, *attacks[::-1], *models[::-1], *data]))
    assert not rc.run(shuffled, tmp_path / "b", plugins=[plugin], batch_size=7).failures
    keys = ["model", "attack", "goal", "eps"]
    one, two = (pd.read_csv(tmp_path / o / "table.csv").sort_values(keys, ignore_index=True) for o in "ab")
    pd.testing.assert_frame_equal(one, two)
    ids = [{path.name for path in (tmp_path / o / "cells").iterdir()} for o in "ab"]
    assert ids[0] == ids[1]
    for name in ids[0]:
        rows = [pq.read_table(tmp_path / o / "cells" / name).to_pandas() for o in "ab"]
        assert rows[0].equals(rows[1])


@pytest.mark.usefixtures("registries")
def test_a_run_whose_every_cell_fails_says_so(suite, plugin, tmp_path):
    """One failing cell under two names: there is nothing to show, and that is no mistake of the user's."""
    head, _, _ = suite.read_text().partition("[[attacks]]")
    twice = head.replace("sharpness = 10.0\n", "")
    suite.write_text(twice + '[[attacks]]\nuse = "broken"\neps = [0.1]\n')
    result = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert result.table.empty and len(result.failures) == 1 and result.computed == 1
    assert result.results is None and [path.name for path in result.files] == ["run.json"]


@pytest.mark.usefixtures("registries")
def test_a_plugin_may_be_given_again_and_old_figures_go(suite, plugin, tmp_path):
    rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert (tmp_path / "o" / "figures" / "targeted.svg").exists()
    suite.write_text(suite.read_text().partition('[[attacks]]\nuse = "fgsm"\nname')[0])
    again = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert again.computed == 0 and again.reused == 8
    assert not (tmp_path / "o" / "figures" / "targeted.svg").exists()
    assert "Success of targeted" not in (tmp_path / "o" / "report.html").read_text()


@pytest.mark.usefixtures("registries")
def test_new_names_need_no_new_computation(suite, plugin, tmp_path):
    rc.run(suite, tmp_path / "o", plugins=[plugin])
    suite.write_text(suite.read_text().replace('"blunt"', '"dull"').replace("fgsm to every class", "fgsm to all"))
    again = rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert (again.computed, again.reused) == (0, 10)
    assert set(again.table["model"]) == {"levels", "dull"} and "fgsm to all" in set(again.table["attack"])


@pytest.mark.usefixtures("registries")
def test_the_record_says_how_to_run_it_again(suite, plugin, tmp_path):
    out = tmp_path / "an out folder"
    rc.run(suite, out, plugins=[plugin], batch_size=16, device="cpu", autocast=True)
    record = record_of(out)
    options = ["--device", "cpu", "--batch-size", "16", "--autocast", "--plugin", str(plugin)]
    assert shlex.split(record["command"]) == ["robustcaps", "run", str(suite), "--out", str(out), *options]
    assert record["engine"] == "local" and record["device"] == "cpu" and record["source"] == "tiny.toml"
    assert record["suite"] == load_suite(suite).model_copy(update={"batch_size": 16}).model_dump(mode="json")
    assert all(cell["seconds"] >= 0 and cell["kind"] == "attack" for cell in record["cells"])
    assert record["finished_at"] and record["timings"]["run_seconds"] > 0


def test_the_record_has_models_only_with_the_data_they_are_for(tmp_path):
    path = tmp_path / "x.toml"
    sets = "".join(f'[[data]]\nuse = "toys"\nname = "{name}"\nlimit = 2\n' for name in ("one", "other"))
    path.write_text(sets + '[[models]]\nuse = "cnn-small"\ndata = ["other"]\n[[attacks]]\nuse = "clean"\n')
    record = record_of(rc.run(path, tmp_path / "out", device="cpu").out)
    assert [(model["label"], model["data"]) for model in record["models"]] == [("cnn-small", "other")]
    assert [cell["names"]["data"] for cell in record["cells"]] == ["other"]


@pytest.mark.usefixtures("registries")
def test_a_record_is_there_before_the_first_cell_ends(suite, plugin, tmp_path, monkeypatch):
    """Whoever stops a run finds out what it was, and `robustcaps report` shows what is finished."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineOptions, "make", lambda *_: stop)
    with pytest.raises(KeyboardInterrupt):
        rc.run(suite, tmp_path / "o", plugins=[plugin])
    record = record_of(tmp_path / "o")
    assert {cell["status"] for cell in record["cells"]} == {"unfinished"} and len(record["cells"]) == 10
    assert record["finished_at"] is None and record["timings"]["run_seconds"] is None


@pytest.mark.usefixtures("registries")
def test_a_model_without_trained_weights_is_refused_before_anything_is_written(suite, plugin, tmp_path):
    plugin.write_text(plugin.read_text().replace(", pretrained=True)", ")"))
    with pytest.raises(rc.UserError, match=r"models\[0\]: model 'levels' has no trained weights"):
        rc.run(suite, tmp_path / "o", plugins=[plugin])
    assert not (tmp_path / "o").exists()
    suite.write_text(suite.read_text().replace('use = "levels"', 'use = "levels"\nuntrained = true'))
    assert not rc.run(suite, tmp_path / "o", plugins=[plugin]).failures


@pytest.mark.usefixtures("registries")
def test_a_damaged_record_of_a_failure_does_not_stop_a_run(suite, plugin, tmp_path):
    suite.write_text(suite.read_text().partition("[[attacks]]")[0] + '[[attacks]]\nuse = "broken"\neps = [0.1]\n')
    rc.run(suite, tmp_path / "o", plugins=[plugin])
    for file in (tmp_path / "o" / "cells").glob("*.failed.json"):
        file.write_text("")
    assert len(rc.run(suite, tmp_path / "o", plugins=[plugin]).failures) == 2


@pytest.mark.usefixtures("registries")
def test_a_second_run_in_a_folder_at_work_is_refused(suite, plugin, tmp_path):
    """It would compute every cell a second time."""
    out = tmp_path / "o"

    class SecondRun(RunProgress):
        def run_started(self, cells, finished):
            with pytest.raises(rc.UserError, match=rf"o: process {os.getpid()} on .* is at work in this folder"):
                rc.run(suite, out, plugins=[plugin])

    assert rc.run(suite, out, plugins=[plugin], progress=SecondRun()).computed == 10
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
