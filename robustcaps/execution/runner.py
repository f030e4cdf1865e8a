"""Run the cells of a suite: train its models, plan, compute what is missing, and record how it was done in run.json."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robustcaps import training
from robustcaps.execution.engines import RunProgress, pick_engine
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.store import DamagedCell, Store
from robustcaps.models.zoo import model_options, trained_card
from robustcaps.suite.cell import Cell
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig, has_card
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
    engine: str = "local"
    batch_size: int | None = None
    progress: RunProgress = field(default_factory=RunProgress)
    training_progress: training.TrainingProgress = field(default_factory=training.TrainingProgress)


@dataclass(frozen=True)
class Execution:
    """What became of the cells of a suite."""

    out: Path
    computed: int
    reused: int
    failures: tuple[Outcome, ...]
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
    lock.new_folders += store.prepare()
    lock.acquire()
    if any(spec.train for spec in suite.models):
        suite, untrained = train_models(suite, folder, options.config, options.training_progress)
        cells = make_plan(suite, resolver, source=str(source), progress=options.progress.data_prepared)
    finished = _find_finished(cells, store, options.progress)
    reused = [cell for cell in cells if cell.id in finished]
    missing = list({cell.id: cell for cell in cells if cell.id not in finished}.values())
    record = _RunRecord(store, suite, source.name, cells, options)
    record.write(finished)
    options.progress.run_started(missing, reused)
    failures = []
    for outcome in pick_engine(options.engine)(missing, resolver, options.progress):
        if outcome.rows is None:
            store.save_failure(outcome.cell, outcome.violation, outcome.trace)
            failures.append(outcome)
        else:
            store.save(outcome.cell, outcome.rows, outcome.seconds)
            finished.add(outcome.cell.id)
        options.progress.cell_ended(outcome)
    record.write(finished, seconds=time.perf_counter() - started)
    return Execution(folder, len(missing), len(reused), tuple(failures), tuple(untrained))


def _find_finished(cells: Sequence[Cell], store: Store, progress: RunProgress) -> set[str]:
    """Return the ids of the cells whose rows are stored; damaged ones are reported and not among them."""
    finished = set()
    for cell in {cell.id: cell for cell in cells}.values():
        try:
            if store.has(cell):
                finished.add(cell.id)
        except DamagedCell as error:
            progress.cell_damaged(cell, str(error))
    return finished


@dataclass(frozen=True)
class _RunRecord:
    """run.json: what was run, on what, with which outcome, and how to run it again."""

    store: Store
    suite: Suite
    source: str
    cells: Sequence[Cell]
    options: RunOptions

    def write(self, finished: set[str], seconds: float | None = None) -> None:
        """Write the record, at the start of a run and, with its duration, at the end."""
        suite = self.suite
        record = {
            "suite": suite.model_dump(mode="json"),
            "source": self.source,
            "finished_at": None if seconds is None else datetime.now(UTC).isoformat(timespec="seconds"),
            "command": self.options.command,
            "commit": git_commit(Path(__file__).parent),
            "engine": self.options.engine,
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
        return {**identity, "settings": cell.settings, "status": status, "violation": violation, "seconds": seconds}


def _model_record(spec: ModelSpec, data: DataSpec) -> dict[str, Any]:
    """Return what the card of a model says about it."""
    card = trained_card(spec.use, data=data.use, weights=spec.weights)
    known = card.model_dump(mode="json", include=CARD_FIELDS)
    options = model_options(card.model, {**card.options, **spec.options})
    names = {"label": spec.label, "data": data.label, "dataset": data.use, "name": card.model}
    group = {} if spec.group is None else {"group": spec.group}
    return {**names, **group, "options": options, **known}
