"""Engines: the same cells in order, with their progress; an engine that is not there is named."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from robustcaps.benchmark import run
from robustcaps.errors import UserError
from robustcaps.execution.cluster.ray_engine import ClusterOptions
from robustcaps.execution.collector import Collector
from robustcaps.execution.engine_options import EngineOptions
from robustcaps.execution.engines import local
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.pending import find_pending_work
from robustcaps.execution.run_progress import RunProgress, ShardProgress
from robustcaps.execution.store import Store
from robustcaps.suite.cell import Cell
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.shard import Shard
from robustcaps.suite.spec import ResourceSpec, load_suite


class RecordedProgress(RunProgress):
    """Notes everything that is reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.steps: dict[str, list[tuple[int, int]]] = {}
        self.plans: list[tuple[int, int]] = []
        self.images: list[tuple[int, int]] = []

    def data_prepared(self, done: int, total: int) -> None:
        self.images.append((done, total))

    def run_started(self, cells: Sequence[Cell], finished: Sequence[Cell]) -> None:
        self.plans.append((len(cells), len(finished)))

    def cell_started(self, cell: Cell) -> None:
        self.events.append(("started", cell.label))

    def cell_advanced(self, cell: Cell, done: int, total: int) -> None:
        self.steps.setdefault(cell.label, []).append((done, total))

    def cell_ended(self, outcome: Outcome) -> None:
        self.events.append(("ended", outcome.cell.label))


@pytest.fixture
def resolver(plugin, registries):
    return Resolver(RuntimeConfig(plugins=(plugin,), device="cpu"))


@pytest.fixture
def cells(suite, resolver):
    """Cells of built-in attacks, and one of a plugin's, which has a worker process."""
    text = suite.read_text() + '\n[[attacks]]\nuse = "darken"\neps = [0.1]\n[[diagnostics]]\nuse = "gradients"\n'
    suite.write_text(text)
    return make_plan(load_suite(suite), resolver, source="tiny.toml")


@pytest.mark.parametrize(("batch_size", "shard_size"), [(4, 8)])
def test_local_executes_the_cells_in_order_and_reports_their_progress(
    suite, cells, resolver, tmp_path, batch_size, shard_size
):
    loaded = load_suite(suite).model_copy(update={"batch_size": batch_size})
    cells = make_plan(loaded, resolver, source="tiny.toml")
    progress, store = RecordedProgress(), Store(tmp_path / "o")
    store.prepare()
    work = find_pending_work(cells, store, progress, shard_size=shard_size, part=None)
    outcomes = list(Collector(store, work, progress).run(work.shards, local, resolver))
    assert [outcome.cell for outcome in outcomes] == cells
    assert all(outcome.rows is not None and outcome.violation == "" for outcome in outcomes)
    assert progress.events == [(event, cell.label) for cell in cells for event in ("started", "ended")]
    attacked = [cell for cell in cells if cell.kind == "attack"]
    assert any(cell.task.time_limit for cell in attacked)
    for cell in attacked:
        done = [step for step, _ in progress.steps[cell.label]]
        totals = {total for _, total in progress.steps[cell.label]}
        assert done == sorted(done) and totals == {done[-1]}


def test_a_cell_starts_after_the_one_before_has_ended(suite, plugin, registries, tmp_path):
    progress = RecordedProgress()
    result = run(suite, tmp_path / "o", plugins=[plugin], progress=progress)
    labels = [label for _, label in progress.events[::2]]
    assert progress.events == [event for label in labels for event in (("started", label), ("ended", label))]
    assert progress.plans == [(10, 0)] and len(labels) == result.computed == 10
    again = RecordedProgress()
    run(suite, tmp_path / "o", plugins=[plugin], progress=again)
    assert again.plans == [(0, 10)] and again.events == []


def test_shards_are_taken_one_at_a_time(cells, resolver):
    shards = iter([Shard(cell) for cell in cells])
    outcomes = local(shards, resolver, ShardProgress())
    next(outcomes)
    outcomes.close()
    assert len(list(shards)) == len(cells) - 1


def test_without_ray_its_engine_says_how_to_get_it(cells, resolver, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = EngineOptions("ray").make(ResourceSpec())
    with pytest.raises(UserError, match=r"needs ray: pip install 'robustcaps\[ray\]'"):
        next(engine([Shard(cell) for cell in cells], resolver, ShardProgress()))


WRONG = {
    "unknown engine": ({"name": "rey"}, r"unknown engine 'rey'. Did you mean 'ray'\?"),
    "address without ray": ({"address": "auto"}, "--address needs --engine ray"),
    "GPUs without ray": ({"gpus_per_task": 0.5}, "--gpus-per-task needs --engine ray"),
    "a strange address": ({"name": "ray", "address": "a:b"}, "--address 'a:b': must be HOST:PORT or auto"),
    "no port": ({"name": "ray", "address": f"a:{'9' * 5000}"}, "must be HOST:PORT or auto"),
    "no CPUs": ({"name": "ray", "cpus_per_task": 0.0}, "cpus_per_task"),
    "negative GPUs": ({"name": "ray", "gpus_per_task": -1.0}, "gpus_per_task"),
    "a GPU and a half": ({"name": "ray", "gpus_per_task": 1.5}, "must be a whole number above 1"),
    "NaN": ({"name": "ray", "gpus_per_task": float("nan")}, "gpus_per_task"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_named_before_anything_is_written(options, message, suite, tmp_path):
    with pytest.raises(UserError, match=message):
        run(suite, tmp_path / "o", **{("engine" if key == "name" else key): value for key, value in options.items()})
    assert not (tmp_path / "o").exists()


def test_the_command_line_comes_before_the_suite():
    engine = EngineOptions("ray", gpus_per_task=0.25).make(ResourceSpec(cpus_per_task=2, gpus_per_task=1))
    assert engine.options == ClusterOptions(None, 2.0, 0.25)
    assert EngineOptions("ray", "auto", 0.5).words == ["--address", "auto", "--cpus-per-task", "0.5"]
