"""robustcaps attack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robustcaps.cli.options import (
    AttackNorm,
    Autocast,
    BatchSize,
    Compiled,
    DataDir,
    DataName,
    DataSettings,
    Device,
    Limit,
    ModelName,
    Plugins,
    Settings,
    Split,
    Untrained,
    Weights,
    check_folder_of,
    console,
    examples,
)
from robustcaps.cli.parsing import assignments, class_word, eps_list
from robustcaps.options import MAX_SEED


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "robustcaps attack cnn fgsm",
            "robustcaps attack matrix-capsnet-small pgd --eps 0.05,0.1 --set steps=40",
            "robustcaps attack cnn bim --goal targeted --target every",
        )
    )(attack)


def attack(
    model: ModelName,
    use: Annotated[str, typer.Argument(metavar="ATTACK", help="An attack, e.g. fgsm, bim, pgd.")],
    eps: Annotated[str, typer.Option(help="One eps or several, e.g. 0.05,0.1.")] = "0.01,0.02,0.05,0.1",
    data: DataName = "toys",
    data_set: DataSettings = None,
    split: Split = "test",
    limit: Limit = 200,
    norm: AttackNorm = None,
    unit: Annotated[
        str | None,
        typer.Option(help="pixel, or std (standard deviations of each image); count for l0; degrees for affine maps."),
    ] = None,
    goal: Annotated[str, typer.Option(help="untargeted or targeted.")] = "untargeted",
    target: Annotated[str | None, typer.Option(help="A class (name or number), every, least-likely or random.")] = None,
    weights: Weights = None,
    untrained: Untrained = False,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the attack's random numbers.")] = 0,
    batch_size: BatchSize = 64,
    rows: Annotated[Path | None, typer.Option(help="CSV file for the rows, one per (sample, eps).")] = None,
    settings: Settings = None,
    device: Device = "auto",
    compiled: Compiled = False,
    autocast: Autocast = False,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Attack one model with one attack and print its accuracy by eps."""
    from robustcaps.analysis.tables.summary import count_violations, summarise
    from robustcaps.cli.progress import RunBars
    from robustcaps.cli.rendering import show_clean_accuracy, show_files, show_summary, show_violations, show_warning
    from robustcaps.execution.single import attack_model
    from robustcaps.models.precision import Precision
    from robustcaps.suite.resolve import RuntimeConfig
    from robustcaps.suite.spec import AttackSpec, DataSpec, ModelSpec, parse_spec

    check_folder_of(rows, "--rows")
    budget = {"eps": eps_list(eps), "norm": norm, "unit": unit, "goal": goal, "target": class_word(target)}
    attack_spec = parse_spec(AttackSpec, {"use": use, **budget, **assignments(settings)})
    data_options = assignments(data_set, "--data-set")
    data_spec = parse_spec(DataSpec, {"use": data, "split": split, "limit": limit, **data_options})
    model_spec = parse_spec(ModelSpec, {"use": model, "weights": weights, "untrained": untrained})
    config = RuntimeConfig(data_dir, device, tuple(plugin or ()), Precision(compile=compiled, autocast=autocast))
    notes: list[str] = []
    with RunBars(console) as bars:
        found = attack_model(
            model_spec,
            data_spec,
            attack_spec,
            config,
            seed=seed,
            batch_size=batch_size,
            loading=bars.loading,
            progress=bars.counting(f"{model} / {data} / {use}"),
            warn=notes.append,
        )
    for note in notes:
        show_warning(console, f"the attack {note}.")
    show_clean_accuracy(console, found)
    show_summary(console, summarise(found))
    show_violations(console, count_violations(found))
    if rows is not None:
        found.to_csv(rows, index=False)
        show_files(console, [rows])
