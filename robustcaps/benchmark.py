"""Run a benchmark from start to end: execute the cells of a suite, then write its tables, figures and report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from robustcaps import training
from robustcaps.analysis.collection import CollectionResults, all_results, load_results, write_collection
from robustcaps.analysis.merge import Merge
from robustcaps.analysis.records import COLLECTION_RECORD, RUN_RECORD, read_collection_record
from robustcaps.analysis.results import Results
from robustcaps.errors import UserError
from robustcaps.execution.engine_options import EngineOptions
from robustcaps.execution.execute_cell import Outcome
from robustcaps.execution.run_progress import RunProgress
from robustcaps.execution.runner import RunOptions, execute_suite
from robustcaps.execution.store import prepare_folder
from robustcaps.models.precision import Precision
from robustcaps.suite.packaged import find_suite
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.shard import Part
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
    part: Part | None = None
    """Which part of the suite it computed; there are no tables, figures and report before `merge`."""
    shards: int = 0
    """How many shards it executed."""

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
    address: str | None = None,
    cpus_per_task: float | None = None,
    gpus_per_task: float | None = None,
    device: str = "auto",
    data_dir: Path | str | None = None,
    plugins: Sequence[Path | str] = (),
    batch_size: int | None = None,
    shard_size: int | None = None,
    part: str | None = None,
    compile: bool = False,  # noqa: A002
    autocast: bool = False,
    progress: RunProgress | None = None,
    training_progress: training.TrainingProgress | None = None,
) -> Run:
    """Run a suite, or a collection of suites, and write tables, figures and a report.

    Models that the suite trains are trained first. Finished trainings and cells are not repeated.

    Args:
        suite: A suite file, a collection, or the name of a packaged one, such as "quick".
        out: The folder for results; default: out/<name of the suite>. A collection has a folder per suite in it.
        engine: 'local', or 'ray' for all cores and GPUs of this machine or of a Ray cluster.
        address: The Ray cluster: 'host:port', or 'auto' for the one that this machine belongs to. Without it, one is
            started on this machine and ends with the run.
        cpus_per_task: CPUs of a Ray task, by default those of the suite, else 1; fractions are allowed.
        gpus_per_task: GPUs of a Ray task, by default those of the suite, else 1 if the cluster has any.
        device: 'auto', 'cpu', 'cuda' or 'mps'.
        data_dir: Directory that contains the datasets.
        plugins: Python files with attacks, models, datasets or diagnostics to register.
        batch_size: Images per pass; results do not depend on it.
        shard_size: Samples per shard, the unit of work: whoever interrupts a run loses the shards at work. By default
            as many as take seconds to minutes; results do not depend on it.
        part: Compute only a part, such as '3/8' for the third of eight, without tables and figures; see `merge`.
        compile: Compile networks; cached separately, because results round differently.
        autocast: Compute in bfloat16; cached separately, because results round differently.
        progress: Callbacks for the progress of the run.
        training_progress: Callbacks for the progress of trainings.

    Returns:
        A `Run`: counts of cells, failures, the files written, and `results`.
    """
    source = find_suite(suite)
    collection = load_collection(source)
    chosen_engine = EngineOptions(engine, address, cpus_per_task, gpus_per_task)
    chosen = None if part is None else Part.parse(part)
    name = collection.name if chosen is None else f"{collection.name}-part-{chosen.number}-of-{chosen.count}"
    folder = Path(out) if out else Path("out") / name
    precision = Precision(compile=compile, autocast=autocast)
    config = RuntimeConfig(Path(data_dir) if data_dir else None, device, tuple(map(Path, plugins)), precision)
    options = RunOptions(
        config,
        _command(
            suite, folder, chosen_engine, config, {"batch-size": batch_size, "shard-size": shard_size, "part": chosen}
        ),
        chosen_engine,
        batch_size,
        shard_size,
        chosen,
        progress=progress or RunProgress(),
        training_progress=training_progress or training.TrainingProgress(),
    )
    if not is_collection(source):
        return _run_suite(source, folder, options)
    for member in collection.suites:  # finds mistakes before hours are spent on the first suite
        make_plan(load_suite(member), Resolver(config), source=str(member), progress=options.progress.data_prepared)
    return _run_collection(collection, folder, options)


def _command(
    source: Path | str, folder: Path, engine: EngineOptions, config: RuntimeConfig, options: Mapping[str, object]
) -> str:
    """Return the command line that repeats a run."""
    words = ["robustcaps", "run", str(source), "--out", str(folder)]
    words += ["--engine", engine.name] if engine.name != "local" else []
    words += engine.words
    words += ["--device", config.device] if config.device != "auto" else []
    words += [word for key, value in options.items() if value is not None for word in (f"--{key}", str(value))]
    words += ["--compile"] if config.precision.compile else []
    words += ["--autocast"] if config.precision.autocast else []
    words += [word for plugin in config.plugins for word in ("--plugin", str(plugin))]
    return shlex.join(words)


def _run_suite(source: Path, folder: Path, options: RunOptions) -> Run:
    """Execute a suite and write everything that it shows."""
    with FolderLock(folder) as lock:
        done = execute_suite(source, lock, options)
        results = Results(folder) if done.has_results and options.part is None else None
        files = [] if results is None else results.write_all()
    record = folder / "run.json"
    found = (folder, done.computed, done.reused, done.failures, (*files, record), results, done.untrained)
    return Run(*found, part=options.part, shards=done.shards)


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
        overview = [] if options.part else CollectionResults(folder).write_overview()
    return Run(
        folder,
        sum(part.computed for part in parts),
        sum(part.reused for part in parts),
        tuple(failure for part in parts for failure in part.failures),
        tuple(overview),
        untrained=tuple(reason for part in parts for reason in part.untrained),
        parts=tuple(parts),
        part=options.part,
        shards=sum(part.shards for part in parts),
    )


@dataclass(frozen=True)
class Merged:
    """What a merge wrote, and what is missing from it."""

    out: Path
    files: tuple[Path, ...]
    results: Results | CollectionResults
    problems: tuple[str, ...]
    """Cells that no part has finished, and files that are damaged."""


def merge(out: Path | str, parts: Sequence[Path | str]) -> Merged:
    """Merge the folders of the parts of a run into one, and write its tables, figures and report.

    Args:
        out: The folder for the merged run; what a former merge or run has left there counts, too.
        parts: The out folders of `run(..., part="1/8")` and so on, in any order; a missing one may follow later.

    Returns:
        A `Merged`: the files written, the results, and what is missing.

    Raises:
        UserError: The parts conflict: they have other cells, or other rows of one cell.
    """
    folder, sources = Path(out), [Path(part) for part in parts]
    if not sources:
        raise UserError("merge: name the folders of the parts.")
    with FolderLock(folder) as lock:
        if all((source / COLLECTION_RECORD).exists() for source in sources):
            damages = _merge_collections(folder, sources, lock)
        else:
            damages = _merge_one(folder, sources, lock)
        results = load_results(folder)
        files = [file for each in all_results(results) if each.has_rows for file in each.write_all()]
        if isinstance(results, CollectionResults):
            files += results.write_overview()
    return Merged(folder, tuple(files), results, (*damages, *results.problems))


def _merge_one(folder: Path, sources: Sequence[Path], lock: FolderLock) -> list[str]:
    """Merge the parts of one suite."""
    merged = Merge(folder, sources)  # verified before anything is written
    lock.new_folders += prepare_folder(folder)
    lock.acquire()
    return merged.write()


def _merge_collections(folder: Path, sources: Sequence[Path], lock: FolderLock) -> list[str]:
    """Merge the parts of a collection, suite by suite."""
    records = [read_collection_record(source) for source in sources]
    names = records[0]["planned"] or records[0]["suites"]
    members = {name: [source / name for source in sources if (source / name / RUN_RECORD).exists()] for name in names}
    merges = {name: Merge(folder / name, found) for name, found in members.items() if found}
    lock.new_folders += prepare_folder(folder)
    lock.acquire()
    damages = [f"{name}: {damage}" for name, merged in merges.items() for damage in merged.write()]
    write_collection(folder, records[0]["name"], records[0]["title"], list(merges), names)
    return damages
