"""A whole run: plan, compute what is not there yet, then tables, figures and the record of how it was done."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from robustcaps import training
from robustcaps.analysis.collection import write_collection, write_overview
from robustcaps.analysis.results import read_table, read_verdicts, write_figures, write_report, write_tables
from robustcaps.execution.engines import Listener, pick_engine
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.store import Store
from robustcaps.models.precision import Precision
from robustcaps.models.zoo import model_options, trained_card
from robustcaps.suite.plan import Work, make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig, has_card
from robustcaps.suite.spec import (
    Collection,
    DataSpec,
    ModelSpec,
    Suite,
    is_collection,
    load_collection,
    load_suite,
    meant_for,
)
from robustcaps.suite.train_models import train_models
from robustcaps.utils.devices import pick_device
from robustcaps.utils.files import write_atomically

PACKAGES = ("robustcaps", "torch", "numpy", "pandas", "pyarrow", "torchattacks", "foolbox", "ray")


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    out: Path
    computed: int
    reused: int
    failures: tuple[Outcome, ...]
    files: tuple[Path, ...]
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    """What attacks left of each model's accuracy."""
    verdicts: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Whether that can be trusted, as far as the suite asks."""
    untrained: tuple[str, ...] = ()
    """Which models of the suite could not be trained, and why; they are in no table."""
    parts: tuple[Run, ...] = ()
    """Of a collection, the runs of its suites."""


def run(
    suite: Path | str,
    out: Path | str | None = None,
    engine: str = "local",
    *,
    device: str = "auto",
    data_dir: Path | str | None = None,
    plugins: Sequence[Path | str] = (),
    batch_size: int | None = None,
    compile: bool = False,  # noqa: A002
    autocast: bool = False,
    listener: Listener | None = None,
    training_listener: training.Listener | None = None,
) -> Run:
    """Run a suite into a folder (default: out/<suite's name>) and return its table.

    Models that the suite trains are trained first. Finished trainings and cells are not repeated.
    `compile` and `autocast` (bfloat16) are quicker on a GPU and round otherwise: their cells are cells of their own.
    A collection of suites is run suite by suite, each into a folder of its own in the folder.
    """
    precision = Precision(compile=compile, autocast=autocast)
    config = RuntimeConfig(Path(data_dir) if data_dir else None, device, tuple(map(Path, plugins)), precision)
    source = Path(suite)
    collection = load_collection(source)
    how = _How(engine, batch_size, config, listener or Listener(), training_listener or training.Listener())
    pick_engine(engine)
    folder = Path(out) if out else Path("out") / collection.name
    if not is_collection(source):
        return _run_suite(source, folder, how)
    for member in collection.suites:  # names mistakes beforehand: the first suite may take hours
        make_plan(load_suite(member), Resolver(config), source=str(member), progress=how.listener.data_prepared)
    return _run_collection(collection, folder, how)


@dataclass(frozen=True)
class _How:
    """What all suites of a run share."""

    engine: str
    batch_size: int | None
    config: RuntimeConfig
    listener: Listener
    training_listener: training.Listener


def _run_collection(collection: Collection, folder: Path, how: _How) -> Run:
    """Run one suite after the other, then write what stands above them."""
    parts = []
    names = [load_suite(member).name for member in collection.suites]
    for number, (member, name) in enumerate(zip(collection.suites, names, strict=True), start=1):
        how.listener.suite_started(name, number, len(names))
        parts.append(_run_suite(member, folder / name, how))
        write_collection(folder, collection.name, collection.title, names[:number])
    return Run(
        folder,
        sum(part.computed for part in parts),
        sum(part.reused for part in parts),
        tuple(failure for part in parts for failure in part.failures),
        tuple(write_overview(folder)),
        pd.concat([part.table for part in parts], ignore_index=True),
        pd.concat([part.verdicts for part in parts], ignore_index=True),
        tuple(reason for part in parts for reason in part.untrained),
        tuple(parts),
    )


def _run_suite(source: Path, folder: Path, how: _How) -> Run:
    """Train what a suite trains, compute what is missing, write everything that it shows."""
    listener, config = how.listener, how.config
    began = time.perf_counter()
    resolver = Resolver(config)
    loaded = load_suite(source)
    if how.batch_size is not None:
        loaded = loaded.model_copy(update={"batch_size": how.batch_size})
    store = Store(folder)
    untrained: list[str] = []
    if any(spec.train for spec in loaded.models):
        make_plan(loaded, resolver, source=str(source), progress=listener.data_prepared)  # names mistakes beforehand
        loaded, untrained = train_models(loaded, store.folder, config, how.training_listener)
    cells = make_plan(loaded, resolver, source=str(source), progress=listener.data_prepared)
    store.prepare()
    finished = [cell for cell in cells if store.has(cell)]
    missing = list({cell.id: cell for cell in cells if not store.has(cell)}.values())
    place = str(pick_device(config.device))
    origin = {"commit": commit(Path(__file__).parent), "engine": how.engine, "device": place}
    _write_record(store, loaded, source, cells, origin)
    listener.run_started(missing, finished)
    failures = []
    for outcome in pick_engine(how.engine)(missing, resolver, listener):
        _keep(store, outcome)
        listener.cell_ended(outcome)
        if outcome.rows is None:
            failures.append(outcome)
    _write_record(store, loaded, source, cells, origin, seconds=time.perf_counter() - began)
    if not any(store.has(cell) for cell in cells):
        record = (store.folder / "run.json",)
        return Run(store.folder, len(missing), 0, tuple(failures), record, untrained=tuple(untrained))
    tables, drawings = write_tables(store.folder), write_figures(store.folder)
    files = (*tables, *drawings, write_report(store.folder), store.folder / "run.json")
    found = read_table(store.folder), read_verdicts(store.folder)
    return Run(store.folder, len(missing), len(finished), tuple(failures), files, *found, tuple(untrained))


def _keep(store: Store, outcome: Outcome) -> None:
    if outcome.rows is None:
        store.save_failure(outcome.cell, outcome.violation, outcome.trace)
    else:
        store.save(outcome.cell, outcome.rows, outcome.seconds)


def _write_record(
    store: Store,
    suite: Suite,
    source: Path,
    cells: Sequence[Work],
    origin: dict[str, str | None],
    seconds: float | None = None,
) -> None:
    """Write run.json, at the start and at the end of a run: what was run, on what, and how to run it again."""
    record = {
        "suite": suite.model_dump(mode="json"),
        "source": source.name,
        "finished_at": None if seconds is None else datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **origin,
        "versions": {"python": platform.python_version(), **versions()},
        "machine": {"system": platform.system(), "processor": platform.machine()},
        "timings": {"run_seconds": seconds and round(seconds, 3)},
        "models": [
            _model_record(spec, data)
            for data in suite.data
            for spec in suite.models
            if has_card(spec) and meant_for(spec.data, data)
        ],
        "cells": [_cell_record(cell, store) for cell in cells],
    }
    write_atomically(store.folder / "run.json", json.dumps(record, indent=2, default=str) + "\n")


def _model_record(spec: ModelSpec, data: DataSpec) -> dict[str, Any]:
    """Return what the card of a model says about it."""
    card = trained_card(spec.use, data=data.use, weights=spec.weights)
    told = {"tag", "parameters", "accuracy", "n_test", "interval", "command"}
    told |= {"data_options", "stop_error", "validation_accuracy"}
    known = card.model_dump(mode="json", include=told)
    options = model_options(card.model, {**card.options, **spec.options})
    names = {"label": spec.label, "data": data.label, "dataset": data.use, "name": card.model}
    return {**names, "options": options, **known}


def _cell_record(cell: Work, store: Store) -> dict[str, Any]:
    violation = store.violation(cell)
    status = "finished" if store.has(cell) else "failed" if violation else "unfinished"
    words = {"id": cell.id, "kind": cell.kind, "label": cell.label, "names": cell.names, "settings": cell.settings}
    return {**words, "status": status, "violation": violation, "seconds": store.seconds(cell)}


def versions() -> dict[str, str]:
    """Return the versions of the packages that results may rest on."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(folder: Path) -> str | None:
    """Return the git commit that a folder is at, with '+changes' if it is not clean; None outside of git."""
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)  # noqa: S603
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+changes" if status.stdout.strip() else "")
