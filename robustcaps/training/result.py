"""The result of a training: weights on disk, evaluated as stored, and their model card."""

from __future__ import annotations

import datetime as dt
import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from robustcaps.capsules.interventions import UNIFORM
from robustcaps.data.base import Data
from robustcaps.introspection.vitals import summarise_routing
from robustcaps.models.base import Classifier
from robustcaps.models.cards import (
    ModelCard,
    RoutingVitals,
    TrainingSettings,
    card_path,
    load_tensors,
    read_tensors,
    tensors_digest,
    write_weights,
)
from robustcaps.models.precision import Precision
from robustcaps.training.accuracy import accuracy_score, predict_classes
from robustcaps.training.adversary import CARD_ATTACK_SAMPLES, CARD_ATTACK_STEPS
from robustcaps.training.checkpoint import LogRow, get_number
from robustcaps.training.loop import TrainingRun
from robustcaps.training.targets import objects_per_image, training_targets
from robustcaps.utils.files import write_atomically
from robustcaps.utils.statistics import wilson
from robustcaps.utils.versions import package_versions

VITALS_SAMPLES = 100
"""Number of test samples, the first ones, that the vital signs of routing are measured on."""


def finish(
    run: TrainingRun, model: Classifier, log: list[LogRow], test: Data, *, validation: str, command: str
) -> ModelCard:
    """Write the weights, evaluate them as stored on the test split, write the card and delete the checkpoint."""
    settings = run.settings
    write_weights(run.weights, model, half=settings.half)
    load_tensors(model, read_tensors(run.weights), where=str(run.weights))
    labels = training_targets(test)
    accuracy = accuracy_score(predict_classes(model, test.images, objects_per_image(labels)), labels)
    low, high = wilson(round(accuracy * len(test)), len(test))
    card = ModelCard(
        **settings.model_dump(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        accuracy=accuracy,
        n_test=len(test),
        interval=(float(low), float(high)),
        validation_accuracy=get_number(log[-1], "validation_accuracy"),
        validation=validation,
        robust_accuracy=_robust_accuracy(run, model, test),
        routing=_measure_routing(run, model, test),
        seconds=round(sum(get_number(row, "seconds") or 0 for row in log), 1),
        command=command,
        versions=package_versions(("robustcaps", "torch")),
        machine=f"{run.device.type}, {torch.get_num_threads()} threads",
        digest=tensors_digest(model.state_dict()),
        date=dt.datetime.now(tz=dt.UTC).date(),
    )
    write_atomically(card_path(run.weights), card.model_dump_json(indent=2) + "\n")
    run.checkpoint.unlink()
    return card


def _measure_routing(run: TrainingRun, model: Classifier, test: Data) -> RoutingVitals | None:
    """Return the vital signs of routing on the first test samples; warn if it is inert."""
    vitals = summarise_routing(model, test.first(VITALS_SAMPLES))
    if vitals is not None and vitals.status == "inert":
        share = vitals.changed[UNIFORM.name]
        run.progress.warn(
            f"the routing of {run.settings.stem} is inert: uniform assignments change {share:.1%} of the predictions."
        )
    return vitals


def training_command(settings: TrainingSettings, options: Iterable[str], precision: Precision) -> str:
    """Return the command that reproduces a training; `options` names the model options that were set."""
    words = ["robustcaps", "train", settings.model, "--data", settings.data]
    words += _assignments("--data-set", settings.data_options)
    words += ["--tag", settings.tag, *settings.command_arguments()]
    words += _assignments("--set", {name: settings.options[name] for name in options})
    return shlex.join([*words, *(f"--{switch}" for switch in precision.enabled)])


def _robust_accuracy(run: TrainingRun, model: Classifier, test: Data) -> float | None:
    """Return the test accuracy under a stronger attack than that of the training; None after standard training."""
    if run.adversary is None:
        return None
    images, labels = test.images[:CARD_ATTACK_SAMPLES].to(run.device), test.labels[:CARD_ATTACK_SAMPLES]
    return run.adversary.robust_accuracy(model, images, labels, seed=run.settings.seed, steps=CARD_ATTACK_STEPS)


def _assignments(flag: str, options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line arguments: FLAG NAME=VALUE for each."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [part for name, value in values.items() for part in (flag, f"{name}={value}")]
