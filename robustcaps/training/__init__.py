"""Training a zoo model: `train` goes from a name to weights and their card, and picks up where it was killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robustcaps.data import load_data
from robustcaps.data.base import Data
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier, Recipe
from robustcaps.models.cards import Card, Settings
from robustcaps.models.precision import TRAINED, Precision
from robustcaps.models.zoo import build_model, model_options
from robustcaps.training.folder import open_folder
from robustcaps.training.listener import Listener
from robustcaps.training.loop import Training, fit
from robustcaps.training.result import command_line, finish
from robustcaps.training.samples import hold_out, hold_out_test, load_train_split
from robustcaps.training.targets import check_targets
from robustcaps.utils.devices import pick_device

__all__ = ["Listener", "train"]


def train(
    name: str,
    *,
    out: Path | str,
    data: str = "toys",
    data_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    tag: str = "a",
    seed: int = 0,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    limit: int | None = None,
    holdout: int = 1,
    adversary_eps: float | None = None,
    adversary_steps: int | None = None,
    holdout_test: int | None = None,
    stop_error: float | None = None,
    half: bool = True,
    resume: bool = True,
    data_dir: Path | str | None = None,
    device: str = "auto",
    compile: bool = False,  # noqa: A002
    autocast: bool = False,
    listener: Listener | None = None,
) -> Card:
    """Train a model and write out/MODEL-TAG.safetensors, its card (.json) and out/log.csv; return the card.

    What is None comes from the model's recipe; `data_options` choose the samples of both splits. A training that was
    killed goes on from its last epoch, and a finished one is not repeated; `resume=False` refuses both. The weights are
    those of the last step: without `stop_error` nothing is selected on the held-out samples, and the test split is
    looked at once, at the end. `compile` and `autocast` (bfloat16) concern the training loss alone; like the device,
    they may change in a training that is resumed.

    With `stop_error` the training ends as soon as no larger share of the held-out samples is got wrong (see
    `has_reached`), to compare networks that are equally good at what they were trained for. A single train instance
    may be nothing like those of the test split; `holdout_test` holds out samples of the test split instead, its last
    ones, which the accuracy on the card then leaves out.

    With `adversary_eps` (linf, pixels of [0,1]) and `adversary_steps` every batch is replaced by the adversarial images
    that so many gradient steps find (see `Adversary`).
    """
    listener = listener or Listener()
    chosen = model_options(name, options or {})
    place = pick_device(device)
    precision = Precision(compile=compile, autocast=autocast)
    precision.check(place)
    sources: dict[str, Any] = {"limit": limit, "data_dir": data_dir, "progress": listener.loading}
    samples = load_train_split(data, data_options or {}, **sources)
    test = load_data(data, split="test", **sources, **(data_options or {}))
    model = trainable(name, samples, chosen, seed)
    check_targets(name, model, samples, adversarial=adversary_eps is not None)
    asked = {"model": name, "options": chosen, "tag": tag, "seed": seed, "half": half}
    asked |= {"data": data, "data_options": dict(data_options or {}), "limit": limit, "holdout": holdout}
    asked |= {"adversary_eps": adversary_eps, "adversary_steps": adversary_steps, "stop_error": stop_error}
    asked |= {"holdout_test": holdout_test}
    recipe = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    recipe = asdict(model.recipe) | {key: value for key, value in recipe.items() if value is not None}
    settings = Settings.parse({**asked, **recipe, **describe(samples)}, where=f"training '{name}'")
    kept, held, validation = hold_out(samples, holdout)
    if holdout_test is not None:
        test, held, validation = hold_out_test(test, holdout_test)
    training = Training(settings, kept, held, Path(out), place, listener)
    finished = open_folder(training, resume=resume)
    if finished is not None:
        return finished
    precision.prepare(model, name=name, methods=TRAINED)
    log = fit(training, model)
    command = " ".join([command_line(settings, options or {}), *(f"--{switch}" for switch in precision.switched_on)])
    return finish(training, model, log, test, validation=validation, command=command)


def describe(samples: Data) -> dict[str, Any]:
    """Return what settings say about train samples."""
    shape = {"classes": samples.classes, "channels": samples.channels, "size": samples.size}
    return {**shape, "class_names": samples.class_names, "data_digest": samples.digest}


def trainable(name: str, samples: Data, options: Mapping[str, Any], seed: int) -> Classifier:
    """Build the model, which must know its own loss and recipe."""
    model = build_model(
        name, classes=samples.classes, channels=samples.channels, size=samples.size, seed=seed, **options
    )
    if not isinstance(model, Classifier) or not isinstance(getattr(model, "recipe", None), Recipe):
        raise UserError(f"model '{name}' cannot be trained: it is not a Classifier with a training loss and a recipe.")
    return model
