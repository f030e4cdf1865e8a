"""robustcaps diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from robustcaps.cli.options import (
    DataDir,
    DataName,
    DataSettings,
    Device,
    Limit,
    ModelName,
    Norm,
    Plugins,
    Split,
    Untrained,
    Weights,
    check_folder_of,
    console,
    examples,
)
from robustcaps.cli.parsing import assignments, eps_value
from robustcaps.options import MAX_SEED


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "robustcaps diagnose matrix-capsnet-small --eps 0.1",
            "robustcaps diagnose cnn --loss training --steps 40 --csv checks.csv",
        )
    )(diagnose)


def diagnose(
    model: ModelName,
    eps: Annotated[
        float, typer.Option(parser=eps_value, metavar="NUMBER", help="Largest perturbation, e.g. 0.03 or 8/255.")
    ] = 0.1,
    data: DataName = "toys",
    data_set: DataSettings = None,
    split: Split = "test",
    limit: Limit = 200,
    norm: Norm = "linf",
    loss: Annotated[str, typer.Option(help="Loss of the baseline attack: ce, ce-scores or training.")] = "ce",
    steps: Annotated[int, typer.Option(min=1, help="Steps of the baseline attack.")] = 20,
    check: Annotated[
        list[str] | None, typer.Option(help="A check to run; repeatable.", show_default="all of them")
    ] = None,
    weights: Weights = None,
    untrained: Untrained = False,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of all random numbers.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="CSV file for the checks.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Check whether a model's robust accuracy can be trusted, or whether gradient masking inflates it."""
    from robustcaps.cli.progress import RunBars
    from robustcaps.cli.rendering import show_files, show_verdict
    from robustcaps.execution.single import diagnose_model
    from robustcaps.suite.resolve import RuntimeConfig
    from robustcaps.suite.spec import DataSpec, ModelSpec, parse_spec

    check_folder_of(csv, "--csv")
    data_options = assignments(data_set, "--data-set")
    data_spec = parse_spec(DataSpec, {"use": data, "split": split, "limit": limit, **data_options})
    model_spec = parse_spec(ModelSpec, {"use": model, "weights": weights, "untrained": untrained})
    config = RuntimeConfig(data_dir, device, tuple(plugin or ()))
    attacked: dict[str, Any] = {"norm": norm, "loss": loss, "steps": steps, "seed": seed}
    with RunBars(console) as bars:
        progress = {"loading": bars.loading, "progress": bars.counting(f"{model} / {data}")}
        verdict = diagnose_model(model_spec, data_spec, config, eps=eps, checks=check, **progress, **attacked)
    show_verdict(console, verdict.summary, verdict.checks)
    if csv is not None:
        verdict.checks.to_csv(csv, index=False)
        show_files(console, [csv])
