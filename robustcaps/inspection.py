"""Inspect capsule networks: figures of routing and decoders, for all models of a run or for a single model."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure
from pydantic import ValidationError
from torch import nn

from robustcaps.analysis.results import Results
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.introspection.decoder import OFFSETS, perturb_capsule
from robustcaps.introspection.figures import draw_perturbations, draw_reconstructions, draw_vote_distances
from robustcaps.introspection.routing import vote_distances
from robustcaps.models.inference import inference
from robustcaps.models.reconstruction import reconstruct
from robustcaps.options import first_problem
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, meant_for, parse_spec
from robustcaps.utils.figure_style import save
from robustcaps.utils.printable import printable

InspectedPart = Literal["routing", "decoder"]
FOLDER = "inspection"
"""Below the out folder; `robustcaps figures` does not clear it."""
DEFAULT_CLASSES = 3
"""Without a choice of samples, the first sample of each of this many classes is drawn."""
MAX_SAMPLES_PER_FIGURE = 12
DEFAULT_LIMIT = 200
"""Samples that are loaded for a single model, to find the first of each class."""


@dataclass(frozen=True)
class InspectedModel:
    """A model, the dataset it is inspected on, and the stem of its file names."""

    model: ModelSpec
    data: DataSpec
    name: str


@dataclass(frozen=True)
class Inspection:
    """The written files, and a note for each kind of figure that could not be drawn."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CaptionedSamples:
    """The samples of a figure and their captions."""

    data: Data
    captions: list[str]


def select_models(
    out: Path | None,
    model: str | None = None,
    *,
    data: str | None = None,
    weights: Path | None = None,
    untrained: bool = False,
    samples: Sequence[int] | None = None,
) -> list[InspectedModel]:
    """Return the named model on test samples of `data` (default: toys), or all models of the run in `out`."""
    if model is not None:
        limit = max(1, max(samples) + 1) if samples else DEFAULT_LIMIT
        data_spec = parse_spec(DataSpec, {"use": data or "toys", "limit": limit})
        model_spec = parse_spec(ModelSpec, {"use": model, "weights": weights, "untrained": untrained})
        return [InspectedModel(model_spec, data_spec, _file_name(model))]
    if data is not None or weights is not None:
        raise UserError("--data, --weights: only with --model; a run has its own.")
    if out is None:
        raise UserError("name the out folder of a run, or a model with --model.")
    return _models_of_run(out)


def _models_of_run(out: Path) -> list[InspectedModel]:
    """Return every model of a run's suite on each dataset that it is evaluated on."""
    try:
        suite = Suite.model_validate(Results(out).record["suite"])
    except ValidationError as error:
        raise UserError(f"{out / 'run.json'}: {first_problem(error)}") from error
    has_several_datasets = len(suite.data) > 1
    found: dict[str, InspectedModel] = {}
    for data in suite.data:
        for model in (each for each in suite.models if meant_for(each.data, data)):
            label = f"{model.label}-{data.label}" if has_several_datasets else model.label
            name = _make_unique(_file_name(label), found)
            found[name] = InspectedModel(model, data, name)
    return list(found.values())


def write_inspection(
    part: InspectedPart,
    models: Sequence[InspectedModel],
    out: Path,
    resolver: Resolver,
    *,
    samples: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Draw the routing or the decoder of models and write the figures to OUT/inspection, as PNG and SVG."""
    files: list[Path] = []
    names_by_reason: dict[str, list[str]] = {}
    draw = _draw_routing if part == "routing" else _draw_decoder
    for inspected in models:
        model = resolver.model(inspected.model, inspected.data)
        data = resolver.data(inspected.data, progress)
        captioned = _caption_samples(model, data, choose_samples(data, samples))
        try:
            figures = draw(model, captioned)
        except UserError as error:
            names_by_reason.setdefault(str(error), []).append(inspected.name)
        else:
            files += _save_all(figures, out / FOLDER, inspected.name)
    notes = tuple(f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items())
    if not files:
        raise UserError(f"nothing to draw: {' '.join(notes)}")
    return Inspection(tuple(files), notes)


def choose_samples(data: Data, indices: Sequence[int] | None) -> list[int]:
    """Return the requested samples, or by default the first one of each of the first classes."""
    if indices is None:
        first_of_class: dict[int, int] = {}
        for index, label in enumerate(data.labels.tolist()):
            first_of_class.setdefault(label, index)
        return list(first_of_class.values())[:DEFAULT_CLASSES]
    if len(indices) > MAX_SAMPLES_PER_FIGURE:
        raise UserError(f"samples: a figure shows at most {MAX_SAMPLES_PER_FIGURE} samples, not {len(indices)}.")
    for index in indices:
        if not 0 <= index < len(data):
            raise UserError(f"samples: there is no sample {index} in '{data.name}'; choose from 0 to {len(data) - 1}.")
    return list(indices)


FiguresByKind = dict[str, Figure]


def _draw_routing(model: nn.Module, samples: CaptionedSamples) -> FiguresByKind:
    data = samples.data
    distances = vote_distances(model, data.images)
    figure = draw_vote_distances(distances, data.images, data.labels, data.class_names, samples.captions)
    return {"routing": figure}


def _draw_decoder(model: nn.Module, samples: CaptionedSamples) -> FiguresByKind:
    images = samples.data.images
    return {
        "reconstruction": draw_reconstructions(images, reconstruct(model, images), samples.captions),
        "perturbation": draw_perturbations(perturb_capsule(model, images), OFFSETS, samples.captions),
    }


def _caption_samples(model: nn.Module, data: Data, indices: Sequence[int]) -> CaptionedSamples:
    """Return the samples, captioned with index, class, and the prediction where it is wrong."""
    chosen = data.select(torch.tensor(indices))
    chosen = replace(chosen, class_names=tuple(map(printable, chosen.class_names)))
    with inference(model, chosen.images) as images:
        predictions = model(images).argmax(dim=1).tolist()
    captions = []
    for index, label, prediction in zip(indices, chosen.labels.tolist(), predictions, strict=True):
        wrong = "" if prediction == label else f"\npredicted {chosen.class_names[prediction]}"
        captions.append(f"#{index} {chosen.class_names[label]}{wrong}")
    return CaptionedSamples(chosen, captions)


def _save_all(figures: FiguresByKind, folder: Path, name: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, figure in figures.items():
        for extension in ("png", "svg"):
            path = folder / f"{kind}-{name}.{extension}"
            save(figure, path)
            yield path


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label)


def _make_unique(name: str, existing: Container[str]) -> str:
    """Return the name, numbered if it exists already."""
    return next(free for free in chain([name], (f"{name}-{k}" for k in count(2))) if free not in existing)
