"""Models that a suite trains itself: once, into the out folder of its run; from then on they are like any others."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from robustcaps.errors import TrainingFailed, UserError
from robustcaps.suite.resolve import RuntimeConfig
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, TrainSpec, meant_for
from robustcaps.training import Listener, train


def train_models(suite: Suite, out: Path, config: RuntimeConfig, listener: Listener) -> tuple[Suite, list[str]]:
    """Return the suite with weights for the models it trains; a training that is finished is not repeated.

    A model whose training fails is left out, and the second list says why; if all fail, that is an error.
    """
    models: list[ModelSpec] = []
    failures: list[str] = []
    for position, spec in enumerate(suite.models):
        try:
            if spec.train is not None:
                weights = _train(spec, spec.train, data_to_train_on(spec, suite), out, config, listener)
                spec = spec.model_copy(update={"weights": weights})  # noqa: PLW2901
            models.append(spec)
        except TrainingFailed as error:
            failures.append(f"{spec.label}: {error}")
        except UserError as error:
            raise UserError(f"models[{position}] '{spec.label}': {error}") from error
    listener.finished()
    if not models:
        raise TrainingFailed(f"no model could be trained. {' '.join(failures)}")
    return suite.model_copy(update={"models": models}), failures


LATER = ("adversary_eps", "adversary_steps", "views", "holdout_test", "stop_error")
"""Settings that there once were not: unsaid they do not count, so that folders of older trainings are found again."""


def training_folder(spec: ModelSpec, data: DataSpec, out: Path) -> Path:
    """Return where a model is trained: a name to recognise it by, and a hash of all it is asked to be."""
    unsaid = {name for name in LATER if getattr(spec.train, name, None) is None}
    said = spec.model_dump_json(exclude={"name": True, "weights": True, "data": True, "train": unsaid})
    asked = said + json.dumps([data.use, data.options], sort_keys=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", spec.label).strip("-")
    return out / "training" / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"


def data_to_train_on(spec: ModelSpec, suite: Suite) -> DataSpec:
    """Return the dataset of a model that the suite trains; it must be for one alone."""
    data = [each for each in suite.data if meant_for(spec.data, each)]
    if len({each.use for each in data}) > 1:
        raise UserError(f"a model that a suite trains has one dataset: say which, e.g. data = ['{data[0].label}'].")
    return data[0]


def _train(
    spec: ModelSpec, how: TrainSpec, data: DataSpec, out: Path, config: RuntimeConfig, listener: Listener
) -> Path:
    """Train one model and return the file of its weights."""
    if spec.weights is not None:
        raise UserError("it has both 'weights' and 'train'; give one.")
    name, _, tag = spec.use.partition(":")
    folder = training_folder(spec, data, out)
    listener.training(spec.label)
    card = train(
        name,
        out=folder,
        data=data.use,
        data_options={**data.options, **({} if how.views is None else {"views": how.views})},
        options=spec.options,
        tag=tag or "a",
        **how.model_dump(exclude={"views"}),
        data_dir=config.data_dir,
        device=config.device,
        compile=config.precision.compile,
        autocast=config.precision.autocast,
        listener=listener,
    )
    return folder / f"{card.stem}.safetensors"
