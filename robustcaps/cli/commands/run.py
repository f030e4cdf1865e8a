"""robustcaps run, robustcaps check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from robustcaps.cli.options import (
    Autocast,
    BatchSize,
    Compiled,
    DataDir,
    Device,
    Plugins,
    ShardSize,
    SuiteFile,
    console,
    examples,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=examples(
            "robustcaps run quick",
            "robustcaps run full --out results --device cuda",
            "robustcaps run my-suite.toml --plugin my_attack.py",
            "robustcaps run my-suite.toml --engine ray --address 10.0.0.1:6379",
            "robustcaps run my-suite.toml --part 3/8",
        )
    )(run)
    app.command(epilog=examples("robustcaps merge out/quick out/quick-part-*"))(merge)
    app.command(epilog=examples("robustcaps check full"))(check)


def run(
    suite: SuiteFile,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="out/<name of the suite>")
    ] = None,
    engine: Annotated[str, typer.Option(help="local (one process) or ray (many).")] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Ray cluster, or auto for the one that this machine belongs to.",
            show_default="a cluster on this machine that ends with the run",
        ),
    ] = None,
    cpus_per_task: Annotated[
        float | None, typer.Option(help="CPUs of a Ray task.", show_default="as the suite says, else 1")
    ] = None,
    gpus_per_task: Annotated[
        float | None,
        typer.Option(help="GPUs of a Ray task, e.g. 0.25.", show_default="as the suite says, else 1 if there are any"),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    batch_size: BatchSize | None = None,
    shard_size: ShardSize = None,
    part: Annotated[
        str | None, typer.Option(metavar="K/N", help="Compute the K-th of N parts only; `robustcaps merge` joins them.")
    ] = None,
    compiled: Compiled = False,
    autocast: Autocast = False,
) -> None:
    """Run a suite: train its models, attack them, write tables, figures and a report. Finished work is not repeated."""
    from robustcaps.benchmark import run as run_suite
    from robustcaps.cli.progress import RunBars
    from robustcaps.cli.rendering import show_run

    with RunBars(console) as bars:
        result = run_suite(
            suite,
            out,
            engine,
            address=address,
            cpus_per_task=cpus_per_task,
            gpus_per_task=gpus_per_task,
            device=device,
            data_dir=data_dir,
            plugins=plugin or (),
            batch_size=batch_size,
            shard_size=shard_size,
            part=part,
            compile=compiled,
            autocast=autocast,
            progress=bars,
            training_progress=bars.training,
        )
    show_run(console, result)
    if result.failures or result.untrained:
        raise typer.Exit(1)


def merge(
    out: Annotated[Path, typer.Argument(help="Folder for the merged run.")],
    parts: Annotated[list[Path], typer.Argument(help="The out folders of the parts.")],
) -> None:
    """Join the parts of a run (--part) in one folder, and write its tables, figures and report."""
    from robustcaps.analysis.collection import all_results
    from robustcaps.benchmark import merge as merge_parts
    from robustcaps.cli.rendering import show_files, show_main_tables, show_problems

    merged = merge_parts(out, parts)
    for results in all_results(merged.results):
        if results.has_rows:
            show_main_tables(console, results)
    show_files(console, merged.files)
    show_problems(Console(stderr=True, emoji=False), merged.problems)
    if merged.problems:
        raise typer.Exit(1)


def check(suite: SuiteFile, device: Device = "auto", data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """Check every name, option, weight and dataset of a suite without running it, and estimate how long it takes."""
    from robustcaps.cli.rendering import show_estimates
    from robustcaps.suite.estimate import estimate_file
    from robustcaps.suite.resolve import RuntimeConfig

    config = RuntimeConfig(data_dir, device, tuple(plugin or ()))
    show_estimates(console, suite, estimate_file(suite, config), device)
