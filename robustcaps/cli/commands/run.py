"""robustcaps run, robustcaps check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import Autocast, BatchSize, Compiled, DataDir, Device, Plugins, SuiteFile, console, examples


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=examples(
            "robustcaps run benchmarks/quick.toml",
            "robustcaps run benchmarks/full.toml --out results --device cuda",
            "robustcaps run my-suite.toml --plugin my_attack.py",
        )
    )(run)
    app.command(epilog=examples("robustcaps check benchmarks/full.toml"))(check)


def run(
    suite: SuiteFile,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results.", show_default="out/<name of the suite>")
    ] = None,
    engine: Annotated[str, typer.Option(help="local (this machine) or ray.")] = "local",
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    batch_size: BatchSize | None = None,
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
            device=device,
            data_dir=data_dir,
            plugins=plugin or (),
            batch_size=batch_size,
            compile=compiled,
            autocast=autocast,
            progress=bars,
            training_progress=bars.training,
        )
    show_run(console, result)
    if result.failures or result.untrained:
        raise typer.Exit(1)


def check(suite: SuiteFile, device: Device = "auto", data_dir: DataDir = None, plugin: Plugins = None) -> None:
    """Check every name, option, weight and dataset of a suite without running it, and estimate how long it takes."""
    from robustcaps.cli.rendering import show_estimates
    from robustcaps.suite.estimate import estimate_file
    from robustcaps.suite.resolve import RuntimeConfig

    config = RuntimeConfig(data_dir, device, tuple(plugin or ()))
    show_estimates(console, suite, estimate_file(suite, config), device)
