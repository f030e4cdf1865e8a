"""The end of a training: weights on disk, measured as written, with a card that says how they were made."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from robustcaps.data.base import Data
from robustcaps.models.base import Classifier
from robustcaps.models.cards import Card, Settings, card_file, digest_of, fill, read_tensors, write_weights
from robustcaps.training.accuracy import predict, share_right
from robustcaps.training.adversary import EXAM_SAMPLES, EXAM_STEPS
from robustcaps.training.checkpoint import Row, number
from robustcaps.training.loop import Training
from robustcaps.training.targets import labels_to_learn, objects_in
from robustcaps.utils.files import write_atomically
from robustcaps.utils.statistics import wilson


def finish(training: Training, model: Classifier, log: list[Row], test: Data, *, validation: str, command: str) -> Card:
    """Write the weights, measure what was written on the test split, write the card and drop the checkpoint."""
    settings = training.settings
    write_weights(training.weights, model, half=settings.half)
    fill(model, read_tensors(training.weights), where=str(training.weights))
    labels = labels_to_learn(test)
    accuracy = share_right(predict(model, test.images.to(training.device), objects_in(labels)), labels)
    low, high = wilson(round(accuracy * len(test)), len(test))
    card = Card(
        **settings.model_dump(),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        accuracy=accuracy,
        n_test=len(test),
        interval=(float(low), float(high)),
        validation_accuracy=number(log[-1], "validation_accuracy"),
        validation=validation,
        robust_accuracy=examine(training, model, test),
        seconds=round(sum(number(row, "seconds") or 0 for row in log), 1),
        command=command,
        versions=versions(),
        machine=f"{training.device.type}, {torch.get_num_threads()} threads",
        digest=digest_of(model.state_dict()),
        date=dt.datetime.now(tz=dt.UTC).date(),
    )
    write_atomically(card_file(training.weights), card.model_dump_json(indent=2) + "\n")
    training.checkpoint.unlink()
    return card


def examine(training: Training, model: Classifier, test: Data) -> float | None:
    """Return the accuracy on test samples under a stronger attack than that of the training, if it had an adversary."""
    if training.adversary is None:
        return None
    images, labels = test.images[:EXAM_SAMPLES].to(training.device), test.labels[:EXAM_SAMPLES]
    seed = training.settings.seed
    return training.adversary.robust_accuracy(model, images, labels, seed=seed, steps=EXAM_STEPS)


def command_line(settings: Settings, options: Iterable[str]) -> str:
    """Return the command that trains these weights again; `options` are the names of those that were given."""
    words = ["robustcaps", "train", settings.model, "--data", settings.data]
    words += _assignments("--data-set", settings.data_options)
    named = ("tag", "seed", "epochs", "batch_size", "lr", "limit", "holdout", "adversary_eps", "adversary_steps")
    for name in (*named, "holdout_test", "stop_error"):
        value = getattr(settings, name)
        words += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    words += [] if settings.half else ["--no-half"]
    words += _assignments("--set", {name: settings.options[name] for name in options})
    return shlex.join(words)


def _assignments(word: str, options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [part for name, value in values.items() for part in (word, f"{name}={value}")]


def versions() -> dict[str, str]:
    """Return the versions that weights may depend on."""
    packages = {name: importlib.metadata.version(name) for name in ("robustcaps", "torch")}
    return {**packages, "python": platform.python_version()}
