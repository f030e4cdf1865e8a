"""Training of zoo models: `train` writes weights and a model card, and resumes after an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from robustcaps.data import load_data
from robustcaps.data.base import Data
from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.base import Classifier, TrainingRecipe
from robustcaps.models.cards import ModelCard, TrainingSettings
from robustcaps.models.precision import TRAINING_METHODS, Precision
from robustcaps.models.zoo import build_model, model_options
from robustcaps.options import first_problem
from robustcaps.training.folder import open_folder
from robustcaps.training.loop import TrainingRun, fit
from robustcaps.training.progress import TrainingProgress
from robustcaps.training.result import finish, training_command
from robustcaps.training.samples import hold_out, hold_out_test, load_train_split
from robustcaps.training.targets import check_targets
from robustcaps.training_options import TrainingOptions
from robustcaps.utils.devices import pick_device
from robustcaps.utils.folder_lock import FolderLock

__all__ = ["TrainingProgress", "train"]


def train(
    name: str,
    *,
    out: Path | str,
    data: str = "toys",
    data_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    tag: str = "a",
    resume: bool = True,
    data_dir: Path | str | None = None,
    device: str = "auto",
    compile: bool = False,  # noqa: A002
    autocast: bool = False,
    progress: TrainingProgress | None = None,
    **training_options: Any,
) -> ModelCard:
    """Train a model and write MODEL-TAG.safetensors, its card (.json) and log.csv to a folder.

    An interrupted training resumes after its last complete epoch and a finished one is not repeated. The weights are
    those of the last step; unless `stop_error` is set, the validation samples do not influence them. The test split is
    evaluated once, at the end.

    Args:
        name: A registered model, such as "cnn".
        out: The output folder.
        data: The dataset to train on.
        data_options: Options of the dataset, for both splits.
        options: Options of the model.
        tag: Distinguishes weights of the same model: "cnn:b" has tag "b".
        resume: False refuses a folder that contains this training already.
        data_dir: Directory that contains the datasets.
        device: "auto", "cpu", "cuda" or "mps".
        compile: Compile the training loss; may change when a training is resumed.
        autocast: Compute the training loss in bfloat16; may change when a training is resumed.
        progress: Receives progress reports.
        **training_options: Fields of `TrainingOptions`: `seed`, `epochs`, `batch_size`, `lr`, `limit`, `holdout`,
            `adversary_eps`, `adversary_steps`, `noise`, `holdout_test`, `stop_error`, `half`.

    Returns:
        The model card.
    """
    progress = progress or TrainingProgress()
    requested = _parse_options(training_options, where=f"training '{name}'")
    all_options = model_options(name, options or {})
    torch_device = pick_device(device)
    precision = Precision(compile=compile, autocast=autocast)
    precision.check(torch_device)
    source: dict[str, Any] = {"limit": requested.limit, "data_dir": data_dir, "progress": progress.loading}
    samples = load_train_split(data, data_options or {}, **source)
    test = load_data(data, split="test", **source, **(data_options or {}))
    model = _build_trainable(name, samples, all_options, requested.seed)
    check_targets(name, model, samples, adversarial=requested.adversary_eps is not None)
    description = {"model": name, "options": all_options, "tag": tag, "data": data}
    description |= {"data_options": dict(data_options or {}), **_describe_samples(samples)}
    recipe = asdict(model.recipe) | requested.model_dump(exclude_none=True)
    settings = TrainingSettings.parse({**description, **recipe}, where=f"training '{name}'")
    train_samples, validation, validation_text = hold_out(samples, settings.holdout)
    if settings.holdout_test is not None:
        test, validation, validation_text = hold_out_test(test, settings.holdout_test)
    run = TrainingRun(settings, train_samples, validation, Path(out), torch_device, progress)
    finished = open_folder(run, resume=resume)
    if finished is not None:
        return finished
    with FolderLock(run.folder) as lock:
        lock.acquire()
        finished = open_folder(run, resume=resume)  # another process may have finished it meanwhile
        if finished is not None:
            return finished
        precision.apply(model, name=name, methods=TRAINING_METHODS)
        log = fit(run, model)
        command = training_command(settings, options or {}, precision)
        return finish(run, model, log, test, validation=validation_text, command=command)


def _parse_options(training_options: Mapping[str, Any], *, where: str) -> TrainingOptions:
    """Return validated training options, or raise `UserError` for the first invalid one."""
    for name in training_options:
        if name not in TrainingOptions.model_fields:
            raise UserError(f"{where}: unknown option '{name}'. {did_you_mean(name, TrainingOptions.model_fields)}")
    try:
        return TrainingOptions.model_validate(training_options)
    except ValidationError as error:
        raise UserError(f"{where}: {first_problem(error)}") from error


def _describe_samples(samples: Data) -> dict[str, Any]:
    """Return the settings that depend on the training samples."""
    shape = {"classes": samples.classes, "channels": samples.channels, "size": samples.size}
    return {**shape, "class_names": samples.class_names, "data_digest": samples.digest}


def _build_trainable(name: str, samples: Data, options: Mapping[str, Any], seed: int) -> Classifier:
    """Build a model, or raise `UserError` if it has no training loss or recipe."""
    model = build_model(
        name, classes=samples.classes, channels=samples.channels, size=samples.size, seed=seed, **options
    )
    if not isinstance(model, Classifier) or not isinstance(getattr(model, "recipe", None), TrainingRecipe):
        raise UserError(f"model '{name}' cannot be trained: it is not a Classifier with a training loss and a recipe.")
    return model
