"""Training of the models that a suite trains itself, once, into the output folder of its run."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from robustcaps.errors import TrainingFailed, UserError
from robustcaps.suite.resolve import RuntimeConfig
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, TrainSpec, meant_for
from robustcaps.training import TrainingProgress, train


def train_models(suite: Suite, out: Path, config: RuntimeConfig, progress: TrainingProgress) -> tuple[Suite, list[str]]:
    """Train the models that a suite asks for; finished trainings are not repeated.

    Args:
        suite: The suite.
        out: The output folder of its run.
        config: Data directory, device and precision.
        progress: Receives progress reports.

    Returns:
        The suite with the weights of its trained models, without those whose training failed, and why each failed.

    Raises:
        TrainingFailed: No model is left.
    """
    models: list[ModelSpec] = []
    failures: list[str] = []
    for position, spec in enumerate(suite.models):
        try:
            if spec.train is not None:
                weights = _train_model(spec, spec.train, select_training_data(spec, suite), out, config, progress)
                spec = spec.model_copy(update={"weights": weights})  # noqa: PLW2901
            models.append(spec)
        except TrainingFailed as error:
            failures.append(f"{spec.label}: {error}")
        except UserError as error:
            raise UserError(f"models[{position}] '{spec.label}': {error}") from error
    progress.finished()
    if not models:
        raise TrainingFailed(f"no model could be trained. {' '.join(failures)}")
    return suite.model_copy(update={"models": models}), failures


def check_trainings(suite: Suite) -> None:
    """Refuse trainings that cannot begin, before anything is written."""
    for position, spec in enumerate(suite.models):
        if spec.train is None:
            continue
        try:
            select_training_data(spec, suite)
            if spec.weights is not None:
                raise UserError("'weights' and 'train' are mutually exclusive.")  # noqa: TRY301
        except UserError as error:
            raise UserError(f"models[{position}] '{spec.label}': {error}") from error


def training_folder(spec: ModelSpec, data: DataSpec, out: Path) -> Path:
    """Return the folder of a model's training: its label and a hash of all settings that are not defaults."""
    settings = spec.model_dump_json(exclude={"name", "weights", "data", "group"}, exclude_defaults=True)
    text = settings + json.dumps([data.use, data.options], sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", spec.label).strip("-")
    return out / "training" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def select_training_data(spec: ModelSpec, suite: Suite) -> DataSpec:
    """Return the dataset that a model is trained on, or raise `UserError` if it is meant for several."""
    data = [each for each in suite.data if meant_for(spec.data, each)]
    if len({each.use for each in data}) > 1:
        raise UserError(f"a model that a suite trains needs exactly one dataset, e.g. data = ['{data[0].label}'].")
    return data[0]


def _train_model(
    spec: ModelSpec,
    options: TrainSpec,
    data: DataSpec,
    out: Path,
    config: RuntimeConfig,
    progress: TrainingProgress,
) -> Path:
    """Train one model and return the file of its weights."""
    name, _, tag = spec.use.partition(":")
    folder = training_folder(spec, data, out)
    views = {} if options.views is None else {"views": options.views}
    progress.training(spec.label)
    card = train(
        name,
        out=folder,
        data=data.use,
        data_options={**data.options, **views},
        options=spec.options,
        tag=tag or "a",
        data_dir=config.data_dir,
        device=config.device,
        compile=config.precision.compile,
        autocast=config.precision.autocast,
        progress=progress,
        **options.model_dump(exclude={"views", "seeds"}),
    )
    return folder / f"{card.stem}.safetensors"
