"""Run the cells of a suite: train its models, plan, compute what is missing, and record how it was done in run.json."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robustcaps import training
from robustcaps.errors import UserError
from robustcaps.execution.collector import Collector
from robustcaps.execution.engine_options import EngineOptions
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.kernel_warm_up import kernels_compiled_meanwhile
from robustcaps.execution.pending import find_pending_work
from robustcaps.execution.run_progress import RunProgress
from robustcaps.execution.store import Store
from robustcaps.models.zoo import model_options, trained_card
from robustcaps.suite.cell import Cell
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig, has_card
from robustcaps.suite.shard import Part
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, load_suite, meant_for
from robustcaps.suite.train_models import check_trainings, train_models
from robustcaps.utils.devices import pick_device
from robustcaps.utils.files import json_checksum, write_atomically
from robustcaps.utils.folder_lock import FolderLock
from robustcaps.utils.versions import git_commit, package_versions

PACKAGES = ("robustcaps", "torch", "numpy", "pandas", "pyarrow", "torchattacks", "foolbox", "ray")
"""The packages whose versions run.json records."""
CARD_FIELDS = {
    *("tag", "parameters", "accuracy", "n_test", "interval", "command"),
    *("data_options", "stop_error", "validation_accuracy", "routing"),
}
"""What run.json repeats of a model's card."""


@dataclass(frozen=True)
class RunOptions:
    """How suites are run: the engine, the runtime, and the progress callbacks."""

    config: RuntimeConfig
    command: str
    """The command line that repeats the run."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    batch_size: int | None = None
    shard_size: int | None = None
    """Samples per shard; None chooses a size by the work that they are."""
    part: Part | None = None
    """The part of the suite to compute; None computes all of it."""
    progress: RunProgress = field(default_factory=RunProgress)
    training_progress: training.TrainingProgress = field(default_factory=training.TrainingProgress)


@dataclass(frozen=True)
class Execution:
    """What became of the cells of a suite."""

    out: Path
    computed: int
    reused: int
    failures: tuple[Outcome, ...]
    shards: int
    """How many shards were executed."""
    untrained: tuple[str, ...]
    """The models that could not be trained, and why; they are in no table."""

    @property
    def has_results(self) -> bool:
        """Whether any cell is finished."""
        return self.reused + self.computed > len(self.failures)


def execute_suite(source: Path, lock: FolderLock, options: RunOptions) -> Execution:
    """Train the models that a suite trains, compute the cells that are missing, and write run.json.

    The out folder is that of the lock, which is acquired when the suite has been checked.
    """
    started = time.perf_counter()
    folder = lock.folder
    resolver, store = Resolver(options.config), Store(folder)
    suite = load_suite(source)
    if options.batch_size is not None:
        suite = suite.model_copy(update={"batch_size": options.batch_size})
    untrained: list[str] = []
    cells = make_plan(suite, resolver, source=str(source), progress=options.progress.data_prepared)
    check_trainings(suite)
    if options.part is not None and (trained := [spec.label for spec in suite.models if spec.train]):
        raise UserError(f"--part: every part would train '{trained[0]}'. Train it first, then name its weights = FILE.")
    lock.new_folders += store.prepare()
    lock.acquire()
    if any(spec.train for spec in suite.models):
        suite, untrained = train_models(suite, folder, options.config, options.training_progress)
        cells = make_plan(suite, resolver, source=str(source), progress=options.progress.data_prepared)
    work = find_pending_work(cells, store, options.progress, shard_size=options.shard_size, part=options.part)
    reused, finished = [cell for cell in cells if cell.id in work.finished], set(work.finished)
    classes = {spec.label: resolver.data(spec).class_names for spec in suite.data}
    record = _RunRecord(store, suite, source.name, cells, options, classes)
    record.write(finished)
    options.progress.run_started(work.cells, reused)
    failures = []
    is_local = options.engine.name == "local"
    with kernels_compiled_meanwhile(work.shards, resolver) if is_local else nullcontext(work.shards) as shards:
        engine = options.engine.make(suite.resources)
        for outcome in Collector(store, work, options.progress).run(shards, engine, resolver):
            if outcome.rows is None:
                failures.append(outcome)
            else:
                finished.add(outcome.cell.id)
    record.write(finished, seconds=time.perf_counter() - started)
    return Execution(folder, len(work.cells), len(reused), tuple(failures), len(work.shards), tuple(untrained))


@dataclass(frozen=True)
class _RunRecord:
    """run.json: what was run, on what, with which outcome, and how to run it again."""

    store: Store
    suite: Suite
    source: str
    cells: Sequence[Cell]
    options: RunOptions
    classes: Mapping[str, Sequence[str]]
    """The names of each dataset's classes."""

    def write(self, finished: set[str], seconds: float | None = None) -> None:
        """Write the record, at the start of a run and, with its duration, at the end."""
        suite = self.suite
        record = {
            "suite": suite.model_dump(mode="json"),
            "source": self.source,
            "finished_at": None if seconds is None else datetime.now(UTC).isoformat(timespec="seconds"),
            "command": self.options.command,
            "commit": git_commit(Path(__file__).parent),
            "engine": self.options.engine.name,
            **({} if self.options.part is None else {"part": str(self.options.part)}),
            "device": str(pick_device(self.options.config.device)),
            "versions": package_versions(PACKAGES),
            "machine": {"system": platform.system(), "processor": platform.machine()},
            "timings": {"run_seconds": seconds and round(seconds, 3)},
            "models": [
                _model_record(spec, data)
                for data in suite.data
                for spec in suite.models
                if has_card(spec) and meant_for(spec.data, data)
            ],
            "classes": self.classes,
            "cells": [self._cell(cell, cell.id in finished) for cell in self.cells],
        }
        plain = json.loads(json.dumps(record, default=str))
        plain["checksum"] = json_checksum(plain)
        write_atomically(self.store.folder / "run.json", json.dumps(plain, indent=2) + "\n")

    def _cell(self, cell: Cell, finished: bool) -> dict[str, Any]:
        violation = self.store.violation(cell)
        status = "finished" if finished else "failed" if violation else "unfinished"
        identity = {"id": cell.id, "kind": cell.kind, "label": cell.label, "names": cell.names}
        seconds = self.store.seconds(cell) if finished else None
        state = {"status": status, "violation": violation, "seconds": seconds}
        return {**identity, "samples": cell.task.sample_count, "settings": cell.settings, **state}


def _model_record(spec: ModelSpec, data: DataSpec) -> dict[str, Any]:
    """Return what the card of a model says about it."""
    card = trained_card(spec.use, data=data.use, weights=spec.weights)
    known = card.model_dump(mode="json", include=CARD_FIELDS)
    options = model_options(card.model, {**card.options, **spec.options})
    names = {"label": spec.label, "data": data.label, "dataset": data.use, "name": card.model}
    group = {} if spec.group is None else {"group": spec.group}
    return {**names, **group, "options": options, **known}
