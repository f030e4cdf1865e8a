"""Engines: the same cells in order, with their progress; an engine that is not there is named."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import pytest

from robustcaps.benchmark import run
from robustcaps.errors import UserError
from robustcaps.execution.engines import ENGINES, RunProgress, _fetch, local, pick_engine, ray
from robustcaps.execution.execute_cell import Outcome
from robustcaps.suite.cell import Cell
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import load_suite


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


def test_local_executes_the_cells_in_order_and_reports_their_progress(cells, resolver):
    progress = RecordedProgress()
    outcomes = list(local(cells, resolver, progress))
    assert [outcome.cell for outcome in outcomes] == cells
    assert all(outcome.rows is not None and outcome.violation == "" for outcome in outcomes)
    assert progress.events == [("started", cell.label) for cell in cells]
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


def test_cells_are_computed_one_at_a_time(cells, resolver):
    progress = RecordedProgress()
    outcomes = local(cells, resolver, progress)
    next(outcomes)
    assert len(progress.events) == 1
    outcomes.close()
    assert len(progress.events) == 1


def test_ray_gives_the_same_table(cli, suite, plugin, tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    for engine in ("local", "ray"):
        assert cli("run", suite, "--plugin", plugin, "--out", engine, "--engine", engine).returncode == 0
    assert (tmp_path / "ray" / "table.csv").read_bytes() == (tmp_path / "local" / "table.csv").read_bytes()


def test_without_ray_its_engine_says_how_to_get_it(cells, resolver, monkeypatch):
    real_import = builtins.__import__

    def without_ray(name: str, *rest: Any, **more: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_ray)
    with pytest.raises(UserError, match=r"needs ray: pip install 'robustcaps\[ray\]'"):
        next(ray(cells, resolver, RunProgress()))


class DeadCluster:
    """Its workers have died."""

    def get(self, result: object) -> Outcome:
        raise RuntimeError("the worker died\nof hunger")


def test_a_worker_of_ray_that_dies_is_a_failure_of_its_cell(cells):
    outcome = _fetch(DeadCluster(), object(), cells[0])
    assert outcome.cell is cells[0] and outcome.rows is None
    assert outcome.violation == "exited" and "the worker died" in outcome.trace


def test_an_unknown_engine_is_named_before_anything_is_written(suite, plugin, registries, tmp_path):
    with pytest.raises(UserError, match=r"unknown engine 'rey'. Did you mean 'ray'\?"):
        run(suite, tmp_path / "o", engine="rey", plugins=[plugin])
    assert not (tmp_path / "o").exists()
    assert all(pick_engine(name) is engine for name, engine in ENGINES.items())
