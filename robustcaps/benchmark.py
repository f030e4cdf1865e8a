"""Run a benchmark from start to end: execute the cells of a suite, then write its tables, figures and report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from robustcaps import training
from robustcaps.analysis.collection import CollectionResults, write_collection
from robustcaps.analysis.results import Results
from robustcaps.execution.engines import RunProgress, pick_engine
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.runner import RunOptions, execute_suite
from robustcaps.execution.store import prepare_folder
from robustcaps.models.precision import Precision
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import Collection, is_collection, load_collection, load_suite
from robustcaps.utils.folder_lock import FolderLock


@dataclass(frozen=True)
class Run:
    """What a run did and wrote."""

    out: Path
    computed: int
    reused: int
    failures: tuple[Outcome, ...]
    files: tuple[Path, ...]
    results: Results | None = None
    """What it found; None if no cell is finished, and for a collection, whose parts have results of their own."""
    untrained: tuple[str, ...] = ()
    """The models that could not be trained, and why; they are in no table."""
    parts: tuple[Run, ...] = ()
    """The runs of the suites of a collection."""

    @property
    def table(self) -> pd.DataFrame:
        """The summary table; for a collection, those of all its suites."""
        return self._concatenated("table")

    @property
    def verdicts(self) -> pd.DataFrame:
        """One line per verdict."""
        return self._concatenated("verdicts")

    def _concatenated(self, name: str) -> pd.DataFrame:
        tables = [run.results.tables[name] for run in (self, *self.parts) if run.results is not None]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


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
    progress: RunProgress | None = None,
    training_progress: training.TrainingProgress | None = None,
) -> Run:
    """Run a suite, or a collection of suites, and write tables, figures and a report.

    Models that the suite trains are trained first. Finished trainings and cells are not repeated.

    Args:
        suite: A suite file, such as benchmarks/quick.toml, or a collection.
        out: The folder for results; default: out/<name of the suite>. A collection has a folder per suite in it.
        engine: 'local' or 'ray'.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        data_dir: Directory that contains the datasets.
        plugins: Python files with attacks, models, datasets or diagnostics to register.
        batch_size: Images per pass; results do not depend on it.
        compile: Compile networks; cached separately, because results round differently.
        autocast: Compute in bfloat16; cached separately, because results round differently.
        progress: Callbacks for the progress of the run.
        training_progress: Callbacks for the progress of trainings.

    Returns:
        A `Run`: counts of cells, failures, the files written, and `results`.
    """
    source = Path(suite)
    collection = load_collection(source)
    pick_engine(engine)
    folder = Path(out) if out else Path("out") / collection.name
    precision = Precision(compile=compile, autocast=autocast)
    config = RuntimeConfig(Path(data_dir) if data_dir else None, device, tuple(map(Path, plugins)), precision)
    options = RunOptions(
        config,
        _command(source, folder, engine, config, batch_size),
        engine,
        batch_size,
        progress or RunProgress(),
        training_progress or training.TrainingProgress(),
    )
    if not is_collection(source):
        return _run_suite(source, folder, options)
    for member in collection.suites:  # finds mistakes before hours are spent on the first suite
        make_plan(load_suite(member), Resolver(config), source=str(member), progress=options.progress.data_prepared)
    return _run_collection(collection, folder, options)


def _command(source: Path, folder: Path, engine: str, config: RuntimeConfig, batch_size: int | None) -> str:
    """Return the command line that repeats a run."""
    words = ["robustcaps", "run", str(source), "--out", str(folder)]
    words += ["--engine", engine] if engine != "local" else []
    words += ["--device", config.device] if config.device != "auto" else []
    words += ["--batch-size", str(batch_size)] if batch_size is not None else []
    words += ["--compile"] if config.precision.compile else []
    words += ["--autocast"] if config.precision.autocast else []
    words += [word for plugin in config.plugins for word in ("--plugin", str(plugin))]
    return shlex.join(words)


def _run_suite(source: Path, folder: Path, options: RunOptions) -> Run:
    """Execute a suite and write everything that it shows."""
    with FolderLock(folder) as lock:
        done = execute_suite(source, lock, options)
        results = Results(folder) if done.has_results else None
        files = [] if results is None else results.write_all()
    record = folder / "run.json"
    return Run(folder, done.computed, done.reused, done.failures, (*files, record), results, done.untrained)


def _run_collection(collection: Collection, folder: Path, options: RunOptions) -> Run:
    """Run one suite after the other, then write the overview."""
    parts = []
    names = [load_suite(member).name for member in collection.suites]
    with FolderLock(folder) as lock:
        lock.new_folders += prepare_folder(folder)
        lock.acquire()
        for number, (member, name) in enumerate(zip(collection.suites, names, strict=True), start=1):
            options.progress.suite_started(name, number, len(names))
            parts.append(_run_suite(member, folder / name, options))
            write_collection(folder, collection.name, collection.title, names[:number], names)
        overview = CollectionResults(folder).write_overview()
    return Run(
        folder,
        sum(part.computed for part in parts),
        sum(part.reused for part in parts),
        tuple(failure for part in parts for failure in part.failures),
        tuple(overview),
        untrained=tuple(reason for part in parts for reason in part.untrained),
        parts=tuple(parts),
    )
