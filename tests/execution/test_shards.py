"""Cells in shards: the same files as whole ones, nothing finished is computed again, damage is found."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import robustcaps as rc
from robustcaps.attacks.evaluation import evaluate
from robustcaps.execution import engines
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import RunProgress
from robustcaps.execution.runner import RunOptions, execute_suite
from robustcaps.suite.resolve import RuntimeConfig
from robustcaps.utils.folder_lock import FolderLock
from robustcaps.utils.spans import Span
from tests.conftest import PLUGIN, SUITE, restored_registries

from .test_runner import digest_of_files, record_of, slow_plugin


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A suite and a plugin, run without shards."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "tiny.toml").write_text("batch_size = 4\n" + SUITE)
    (folder / "plugin.py").write_text(PLUGIN)
    with restored_registries():
        compute(folder / "tiny.toml", folder / "whole", folder / "plugin.py")
        yield folder


@pytest.fixture
def suite(folder):
    return folder / "tiny.toml"


@pytest.fixture
def plugin(folder):
    return folder / "plugin.py"


@pytest.fixture
def whole(folder):
    return folder / "whole"


def compute(suite, out, plugin, shard_size=None, progress=None):
    """Execute a suite as `rc.run` does, without writing tables and figures."""
    config = RuntimeConfig(plugins=(plugin,), device="cpu")
    with FolderLock(out) as lock:
        options = RunOptions(config, "", shard_size=shard_size, progress=progress or RunProgress())
        return execute_suite(suite, lock, options)


def rows_of(out):
    return {path.stem: pq.read_table(path).replace_schema_metadata(None) for path in (out / "cells").glob("*.parquet")}


def assert_same_rows(out, other):
    rows, expected = rows_of(out), rows_of(other)
    assert rows.keys() == expected.keys()
    assert all(rows[name].equals(expected[name]) for name in rows)
    assert not (out / "shards").exists()


def test_rows_are_those_of_whole_cells(suite, plugin, tmp_path, whole):
    result = compute(suite, tmp_path / "o", plugin, 12)
    assert not result.failures and result.computed == 10
    assert_same_rows(tmp_path / "o", whole)
    assert {cell["status"] for cell in record_of(tmp_path / "o")["cells"]} == {"finished"}


@pytest.mark.parametrize(
    "options",
    [{}, {"goal": "targeted", "target": "random"}, {"goal": "targeted", "target": "every"}, {"unit": "std"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["pgd", "square"])
def test_samples_have_the_rows_that_they_have_among_all(network, network_data, name, options):
    if "unit" in options:
        options = {"norm": "l2"}
    attack = rc.load_attack(name, eps=[0.02, 0.1], **({"steps": 3} if name == "pgd" else {"queries": 8}), **options)
    whole = evaluate(network, network_data, attack, seed=3, batch_size=8)
    for span in (Span(0, 16), Span(16, 32), Span(32, 37)):
        seen = []
        part = evaluate(
            network,
            network_data,
            attack,
            seed=3,
            batch_size=8,
            samples=span,
            progress=lambda *step, seen=seen: seen.append(step),
        )
        expected = whole[whole["index"].between(span.start, span.stop - 1)].reset_index(drop=True)
        assert part.equals(expected)
        assert seen[-1] == (len(part), len(part))


def test_samples_beyond_the_data_are_refused(network, network_data):
    with pytest.raises(rc.UserError, match="samples: 30 to 40 are not all among the 37"):
        evaluate(network, network_data, rc.load_attack("clean"), samples=Span(30, 40))


class Steps(RunProgress):
    """Collects what is reported, and stops a run after some steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.damages: list[str] = []
        self.first: dict[str, int] = {}
        self.count = 0

    def cell_damaged(self, cell, problem):
        self.damages.append(problem)

    def cell_advanced(self, cell, done, total):
        self.first.setdefault(cell.label, done)
        self.count += 1
        if self.count == self.stop_after:
            raise KeyboardInterrupt


def counted_shards(monkeypatch):
    """Return a list that notes the shards that are executed."""
    executed = []
    real = engines.execute_shard

    def noting(shard, *rest):
        outcome = real(shard, *rest)
        executed.append(shard.id)
        return outcome

    monkeypatch.setattr(engines, "execute_shard", noting)
    return executed


@pytest.mark.parametrize("other_size", [4, 20])
def test_an_interrupted_cell_goes_on_after_its_finished_shards(suite, plugin, tmp_path, whole, monkeypatch, other_size):
    executed = counted_shards(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        compute(suite, tmp_path / "o", plugin, 4, Steps(40))
    before = digest_of_files(tmp_path / "o" / "shards")
    assert len(before) >= 2
    progress = Steps()
    compute(suite, tmp_path / "o", plugin, other_size, progress)
    assert len(set(executed)) == len(executed), "a finished shard was computed again"
    assert any(done > 16 for done in progress.first.values()), "progress begins where the cell stopped"
    assert_same_rows(tmp_path / "o", whole)


@pytest.mark.parametrize("damage", [lambda text: text[:100], lambda text: text[:60] + b"\0" + text[61:]])
def test_a_damaged_shard_is_named_and_computed_again(suite, plugin, tmp_path, whole, damage):
    with pytest.raises(KeyboardInterrupt):
        compute(suite, tmp_path / "o", plugin, 4, Steps(40))
    victim = min((tmp_path / "o" / "shards").iterdir())
    victim.write_bytes(damage(victim.read_bytes()))
    progress = Steps()
    compute(suite, tmp_path / "o", plugin, 4, progress)
    assert len(progress.damages) == 1 and f"{victim.name}: damaged" in progress.damages[0]
    assert_same_rows(tmp_path / "o", whole)


def test_a_kill_before_or_after_shards_are_joined_loses_nothing(suite, plugin, tmp_path, whole, monkeypatch):
    """A run may be killed just before, or just after, it writes the file of a cell."""
    saved = tmp_path / "saved"
    saved.mkdir()
    real = engines.execute_shard

    def keeping(shard, *rest):
        for file in (tmp_path / "o" / "shards").glob("*"):
            (saved / file.name).write_bytes(file.read_bytes())
        return real(shard, *rest)

    monkeypatch.setattr(engines, "execute_shard", keeping)
    compute(suite, tmp_path / "o", plugin, 4)
    last = min((tmp_path / "o" / "cells").iterdir())
    shards = tmp_path / "o" / "shards"
    shards.mkdir()
    for file in saved.iterdir():
        (shards / file.name).write_bytes(file.read_bytes())
    assert compute(suite, tmp_path / "o", plugin, 4).computed == 0
    assert not shards.exists() and last.exists()
    with monkeypatch.context() as patch:
        patch.setattr("robustcaps.execution.shard_store.ShardStore.join", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            compute(suite, tmp_path / "p", plugin, 4)
    executed = counted_shards(monkeypatch)
    assert not compute(suite, tmp_path / "p", plugin, 4).failures
    assert len({shard.partition("-")[0] for shard in executed}) == 9, "the first cell was only joined"
    assert_same_rows(tmp_path / "p", whole)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_a_cell_ends_with_its_first_failing_shard(suite, plugin, tmp_path, whole, monkeypatch):
    executed = []
    real = engines.execute_shard

    def failing(shard, *rest):
        executed.append(shard.label)
        if shard.label == "levels / dots / fgsm, samples 8 to 11":
            return Outcome(shard.cell, 0.1, violation="raised", trace="no luck", samples=shard.samples)
        return real(shard, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(engines, "execute_shard", failing)
        (failure,) = compute(suite, tmp_path / "o", plugin, 4).failures
    assert failure.cell.label == "levels / dots / fgsm" and failure.reason == "no luck"
    assert sum(label.startswith("levels / dots / fgsm,") for label in executed) == 3
    assert not compute(suite, tmp_path / "o", plugin, 4).failures
    assert_same_rows(tmp_path / "o", whole)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [3, 30])
def test_kills_lose_at_most_a_shard(suite, plugin, tmp_path, kills):
    """A run is killed again and again: no file of a shard or cell is written twice, and the tables are the same."""
    plugin = slow_plugin(Path(shutil.copy(plugin, tmp_path / "slow.py")))
    options = ["--plugin", str(plugin), "--shard-size", "4", "--device", "cpu"]
    code = "from robustcaps.cli.app import main; main()"
    command = [sys.executable, "-c", code, "run", str(suite), *options, "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "whole"], cwd=tmp_path, stdout=subprocess.DEVNULL, env=environment, check=True)
    out = tmp_path / "o"
    all_shards = 10 * 8

    def finished():
        return 8 * len(list(out.glob("cells/*.parquet"))) + len(list(out.glob("shards/*.parquet")))

    for kill in range(1, kills + 1):
        stamps = digest_of_files(out / "cells") | digest_of_files(out / "shards")
        with subprocess.Popen([*command, "o"], cwd=tmp_path, stdout=subprocess.DEVNULL, env=environment) as process:
            deadline = time.monotonic() + 240
            while finished() < kill * all_shards // (kills + 1) and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.003)
            time.sleep(random.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
        after = digest_of_files(out / "cells") | digest_of_files(out / "shards")
        for name, content in stamps.items():
            owner = f"{name.split('-')[0]}.parquet" if "-" in name else name
            assert after.get(name) == content or owner in after, "a finished shard was lost or computed again"
    subprocess.run([*command, "o"], cwd=tmp_path, stdout=subprocess.DEVNULL, env=environment, check=True)
    for file in (tmp_path / "whole").glob("*.csv"):
        assert file.read_bytes() == (out / file.name).read_bytes()
