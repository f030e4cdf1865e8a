"""What a worker does with what it is sent, without a cluster: plugins, weights, and refusals of what differs."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from robustcaps.errors import UserError
from robustcaps.execution.cluster.shard_worker import ShardWorker, WorkerSetup
from robustcaps.execution.cluster.shipment import Plugin, WeightsFile, package_digest, weights_paths, with_weights
from robustcaps.execution.execute_cell import execute_cell
from robustcaps.models.zoo import find_shipped_weights
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.shard import split_cell
from robustcaps.suite.spec import load_suite
from tests.conftest import restored_registries


@pytest.fixture
def plan(suite, plugin, registries, monkeypatch):
    """A resolver of the driver's, the shards of its plan, and how its workers are set up."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("ROBUSTCAPS_DATA", raising=False)
    suite.write_text("batch_size = 8\n" + suite.read_text() + '[[diagnostics]]\nuse = "gradients"\nlimit = 10\n')
    config = RuntimeConfig(plugins=(plugin,), device="cpu")
    resolver = Resolver(config)
    cells = make_plan(load_suite(suite), resolver, source="tiny.toml")
    setup = WorkerSetup(
        replace(config, plugins=()), [Plugin.pack(plugin)], package_digest(), cpus=1.0, has_own_data=True
    )
    return resolver, [shard for cell in cells for shard in split_cell(cell, 16)], setup


def test_a_worker_with_what_it_was_sent_computes_the_same_rows(plan, plugin):
    resolver, shards, setup = plan
    expected = [execute_cell(shard.cell, resolver, samples=shard.samples).rows for shard in shards]
    plugin.unlink()
    with restored_registries():
        forget_plugins()
        worker = ShardWorker(setup)
        assert worker.progress() == (0, 0)
        for shard, rows in zip(shards, expected, strict=True):
            outcome = worker.execute(shard, {})
            assert outcome.violation == "" and outcome.samples == shard.samples
            assert outcome.rows.equals(rows)
        assert worker.progress()[0] > 0


def forget_plugins():
    """Forget what plugins have registered, as in the new process that a worker is."""
    from robustcaps.registry import ATTACKS, DATASETS, MODELS  # noqa: PLC0415

    for kind in (ATTACKS, DATASETS, MODELS):
        for name in [name for name, entry in kind._entries.items() if not entry.built_in]:
            del kind._entries[name]


REFUSALS = {
    "other code": (lambda setup, shard: (replace(setup, digest="0"), shard), "other code of robustcaps"),
    "other data": (
        lambda setup, shard: (setup, changed(shard, "data", {"digest": "0"})),
        "dataset 'dots' is not the same there",
    ),
    "other weights": (
        lambda setup, shard: (setup, changed(shard, "model", {**shard.cell.settings["model"], "digest": "0"})),
        "model 'levels' is not the same there",
    ),
    "no plugin": (lambda setup, shard: (replace(setup, plugins=[]), shard), "unknown dataset 'dots'"),
}


def changed(shard, part, content):
    return replace(shard, cell=replace(shard.cell, settings={**shard.cell.settings, part: content}))


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_not_the_same_is_refused_with_the_name_of_the_machine(plan, change, message):
    _, shards, setup = plan
    setup, shard = change(setup, shards[0])
    with restored_registries():
        forget_plugins()
        with pytest.raises(UserError, match=rf"^worker on .*: .*{message}"):
            ShardWorker(setup).execute(shard, {})


@pytest.mark.parametrize(("has_own_data", "expected"), [(True, None), (False, Path("/driver"))])
def test_the_data_of_a_worker_come_first_on_a_cluster_that_is_not_our_own(plan, monkeypatch, has_own_data, expected):
    _, shards, setup = plan
    monkeypatch.setenv("ROBUSTCAPS_DATA", "/worker")
    config = replace(setup.config, data_dir=Path("/driver"))
    with restored_registries():
        forget_plugins()
        worker = ShardWorker(replace(setup, config=config, has_own_data=has_own_data))
        worker.execute(shards[0], {})
    assert worker.resolver.config.data_dir == expected


def test_a_plugin_travels_with_the_modules_that_it_imports(tmp_path):
    home = tmp_path / "home"
    (home / "lib").mkdir(parents=True)
    (home / "main.py").write_text("import helper\nfrom lib import deep\nimport torch\n")
    (home / "helper.py").write_text("x = 1\n")
    (home / "lib" / "__init__.py").write_text("")
    (home / "lib" / "deep.py").write_text("import helper\n")
    (home / "unused.py").write_text("secret = 1\n")
    packed = Plugin.pack(home / "main.py")
    assert set(packed.files) == {"main.py", "helper.py", "lib/__init__.py", "lib/deep.py"}
    before = list(sys.path)
    try:
        path = packed.unpack(tmp_path / "there")
        assert path.read_text() == (home / "main.py").read_text() and sys.path[0] == str(tmp_path / "there")
    finally:
        sys.path[:] = before
    assert (tmp_path / "there" / "lib" / "deep.py").exists()


def test_weights_travel_with_their_card(tmp_path):
    shipped = find_shipped_weights("cnn-small", "", "toys")
    mine = tmp_path / "mine.safetensors"
    shutil.copy(shipped, mine)
    shutil.copy(shipped.with_suffix(".json"), mine.with_suffix(".json"))
    (tmp_path / "w.toml").write_text(
        f'[[data]]\nuse = "toys"\nlimit = 2\n[[models]]\nuse = "cnn-small"\nweights = "{mine}"\n'
        '[[attacks]]\nuse = "fgsm"\neps = [0.01]\n'
        '[[attacks]]\nuse = "transfer"\nsurrogate = "cnn-small"\neps = [0.01]\n'
    )
    cells = make_plan(load_suite(tmp_path / "w.toml"), Resolver(RuntimeConfig(device="cpu")), source="w.toml")
    places = {}
    for path in weights_paths(cells[1]):
        packed = WeightsFile.pack(path)
        places[path] = packed.unpack(tmp_path / "there")
        assert packed.unpack(tmp_path / "there") == places[path], "the same file is written once"
    mine.unlink()
    moved = with_weights(cells[1], places)
    assert execute_cell(moved, Resolver(RuntimeConfig(device="cpu"))).violation == ""
    with pytest.raises(UserError, match=r"mine.safetensors: cannot be read"):
        WeightsFile.pack(mine)
