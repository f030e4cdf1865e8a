"""Looks written to files: for the models of a run or one named model, on chosen samples."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import torch
from matplotlib.figure import Figure
from pydantic import ValidationError
from torch import nn

from robustcaps.analysis.figures import save
from robustcaps.analysis.results import read_record
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.introspection.figures import draw_perturbations, draw_reconstructions, draw_vote_distances
from robustcaps.introspection.routing import vote_distances
from robustcaps.models.inference import inference
from robustcaps.models.reconstruction import OFFSETS, perturb_capsule, reconstruct
from robustcaps.options import first_problem
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, meant_for, parse_spec

CLASSES = 3
"""Without a choice of samples, the first of so many classes are shown."""
MOST = 12
"""More samples do not fit into a figure."""
SEARCHED = 200
"""How many samples of a dataset are searched for the first of each class where no run says how many it took."""


@dataclass(frozen=True)
class Subject:
    """A model to look at and the data to show it, and what its files are called."""

    model: ModelSpec
    data: DataSpec
    name: str


@dataclass(frozen=True)
class Album:
    """The figures that were written, and a line for each that a model could not give."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Shown:
    """The samples that a model is shown, and what is written above them."""

    data: Data
    captions: list[str]


def find_subjects(
    out: Path,
    model: str | None = None,
    *,
    data: str | None = None,
    weights: Path | None = None,
    samples: Sequence[int] | None = None,
) -> list[Subject]:
    """Return the named model on test samples of `data` (default: toys), or else all models of the run in `out`."""
    if model is not None:
        limit = max(1, max(samples) + 1) if samples else SEARCHED
        data_spec = parse_spec(DataSpec, {"use": data or "toys", "limit": limit})
        return [Subject(parse_spec(ModelSpec, {"use": model, "weights": weights}), data_spec, _file_name(model))]
    if data is not None or weights is not None:
        raise UserError("--data, --weights: only with --model; a run has its own.")
    return _subjects_of_run(out)


def _subjects_of_run(out: Path) -> list[Subject]:
    """Return every model of a run's suite on each dataset that it is for."""
    try:
        suite = Suite.model_validate(read_record(out)["suite"])
    except ValidationError as error:
        raise UserError(f"{out / 'run.json'}: {first_problem(error)}") from error
    several = len(suite.data) > 1
    subjects: dict[str, Subject] = {}
    for data in suite.data:
        for model in (each for each in suite.models if meant_for(each.data, data)):
            name = _free(_file_name(f"{model.label}-{data.label}" if several else model.label), subjects)
            subjects[name] = Subject(model, data, name)
    return list(subjects.values())


def write_album(
    subjects: Sequence[Subject],
    out: Path,
    resolver: Resolver,
    *,
    routing: bool,
    decoder: bool,
    samples: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Album:
    """Write the looks that were asked for into the folder `figures` of `out`, as PNG and SVG."""
    files: list[Path] = []
    refused: dict[str, list[str]] = {}
    kinds = [draw for wanted, draw in ((routing, _look_at_routing), (decoder, _look_through_decoder)) if wanted]
    for subject in subjects:
        model = resolver.model(subject.model, subject.data)
        data = resolver.data(subject.data, progress)
        shown = _caption(model, data, choose_samples(data, samples))
        for draw in kinds:
            try:
                drawn = draw(model, shown)
            except UserError as error:
                refused.setdefault(str(error), []).append(subject.name)
            else:
                files += _save(drawn, out / "figures", subject.name)
    notes = tuple(f"{', '.join(names)}: {reason}" for reason, names in refused.items())
    if not files:
        raise UserError(f"nothing to draw: {' '.join(notes)}")
    return Album(tuple(files), notes)


def choose_samples(data: Data, wanted: Sequence[int] | None) -> list[int]:
    """Return the samples that are asked for, or else the first of each of the first classes there are."""
    if wanted is None:
        first: dict[int, int] = {}
        for place, label in enumerate(data.labels.tolist()):
            first.setdefault(label, place)
        return list(first.values())[:CLASSES]
    if len(wanted) > MOST:
        raise UserError(f"samples: {len(wanted)} are too many for a figure; choose up to {MOST}.")
    for place in wanted:
        if not 0 <= place < len(data):
            raise UserError(f"samples: there is no sample {place} in '{data.name}'; choose from 0 to {len(data) - 1}.")
    return list(wanted)


Drawn = dict[str, Figure]


def _look_at_routing(model: nn.Module, shown: Shown) -> Drawn:
    data = shown.data
    distances = vote_distances(model, data.images)
    figure = draw_vote_distances(distances, data.images, data.labels, data.class_names, shown.captions)
    return {"routing": figure}


def _look_through_decoder(model: nn.Module, shown: Shown) -> Drawn:
    images = shown.data.images
    return {
        "reconstruction": draw_reconstructions(images, reconstruct(model, images), shown.captions),
        "perturbation": draw_perturbations(perturb_capsule(model, images), OFFSETS, shown.captions),
    }


def _caption(model: nn.Module, data: Data, samples: Sequence[int]) -> Shown:
    """Return the samples, with their number, class, and what the model takes them for where it is wrong."""
    chosen = data.select(torch.tensor(samples))
    with inference(model, chosen.images) as images:
        predictions = model(images).argmax(dim=1).tolist()
    captions = []
    for number, label, prediction in zip(samples, chosen.labels.tolist(), predictions, strict=True):
        wrong = "" if prediction == label else f"\nseen as {data.class_names[prediction]}"
        captions.append(f"#{number} {data.class_names[label]}{wrong}")
    return Shown(chosen, captions)


def _save(drawn: Drawn, folder: Path, name: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, figure in drawn.items():
        for ending in ("png", "svg"):
            path = folder / f"{kind}-{name}.{ending}"
            save(figure, path)
            yield path


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label)


def _free(name: str, taken: Container[str]) -> str:
    """Return the name, numbered where another subject has it."""
    return next(free for free in chain([name], (f"{name}-{k}" for k in count(2))) if free not in taken)
