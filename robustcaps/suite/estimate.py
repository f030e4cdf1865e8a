"""How long a suite will take on this machine: passes of each model are timed, and multiplied by those it needs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError, describe_error
from robustcaps.models.base import Classifier
from robustcaps.models.inference import eval_mode
from robustcaps.suite.cell import Cell
from robustcaps.suite.packaged import find_suite
from robustcaps.suite.plan import make_plan
from robustcaps.suite.resolve import Resolver, RuntimeConfig
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, load_collection, load_suite, meant_for
from robustcaps.suite.train_models import select_training_data
from robustcaps.utils.devices import pick_device

BATCH = 16
REPEATS = 2
"""Each pass is timed this often; the quickest counts."""
UNITS = (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48), ("days", 86400, float("inf")))
"""Units of durations: name, seconds, and up to how many of them are shown."""


@dataclass(frozen=True)
class Speed:
    """How many seconds a model takes for an image."""

    forward: float
    gradient: float
    """Forward and backward."""

    @property
    def per_pass(self) -> float:
        """The time of a pass as attacks count them: a gradient is three."""
        return max(self.forward, self.gradient / 3)


@dataclass(frozen=True)
class TimeEstimate:
    """About how many seconds a suite spends at most on one model and one dataset."""

    model: str
    data: str
    speed: Speed
    work: float
    """Attacks and diagnostics."""
    training: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.work + self.training


@dataclass(frozen=True)
class SuiteEstimate:
    """The cells of a suite, the trainings before them, and about how long both take at most."""

    source: Path
    suite: Suite
    cells: Sequence[Cell]
    times: Sequence[TimeEstimate]

    @property
    def rows(self) -> int:
        """How many rows its attacks will have."""
        return sum(cell.task.row_count or 0 for cell in self.cells)

    @property
    def passes(self) -> float:
        """About how many forward passes of one image its cells take at most."""
        return sum(cell.work for cell in self.cells)

    @property
    def seconds(self) -> float:
        """About how many seconds it takes at most."""
        return sum(time.total for time in self.times)

    def lines(self) -> Iterator[str]:
        """Yield a line per training, per cell, and per model and dataset."""
        for spec in self.suite.models:
            if spec.train is not None:
                options = ", ".join(f"{key} {value}" for key, value in spec.train.model_dump(exclude_none=True).items())
                yield f"trains {spec.label} first: {options}"
        for cell in self.cells:
            rows = "" if cell.task.row_count is None else f": {cell.task.row_count} rows"
            yield f"{cell.id}  {cell.label}{rows}"
        for each in self.times:
            training = f", and {format_duration(each.training)} of training" if each.training else ""
            speed = f"{1000 * each.speed.forward:.2g} ms per image, {1000 * each.speed.gradient:.2g} with its gradient"
            yield f"{each.model} on {each.data}: about {format_duration(each.work)} at most{training} ({speed})"


def estimate_file(source: Path, config: RuntimeConfig) -> list[SuiteEstimate]:
    """Plan a suite, or every suite of a collection, and estimate how long each takes on this machine."""
    resolver = Resolver(config)
    estimates = []
    for path in load_collection(find_suite(source)).suites:
        suite = load_suite(path)
        cells = make_plan(suite, resolver, source=str(path))
        estimates.append(SuiteEstimate(path, suite, cells, estimate(suite, cells, resolver)))
    return estimates


def estimate(suite: Suite, cells: Sequence[Cell], resolver: Resolver) -> list[TimeEstimate]:
    """Return about how long a suite takes, a line per model and dataset; `cells` are its plan."""
    stopwatch = Stopwatch(resolver)
    seconds = [(cell, stopwatch.seconds(cell)) for cell in cells]
    lines = []
    for data in suite.data:
        for spec in suite.models:
            if meant_for(spec.data, data):
                work = sum(taken for cell, taken in seconds if cell.model == spec and cell.data == data)
                here = spec.train is not None and select_training_data(spec, suite) == data
                training = stopwatch.training(spec, data) if here else 0.0
                lines.append(TimeEstimate(spec.label, data.label, stopwatch.speed(spec, data), work, training))
    return lines


@dataclass(frozen=True, eq=False)
class Stopwatch:
    """Estimates how long cells and trainings take; each model is timed once."""

    resolver: Resolver
    speeds: dict[nn.Module, Speed] = field(default_factory=dict)
    crafted: set[tuple[str, str]] = field(default_factory=set)
    """(attack, data) whose images are crafted already, for the next model that they are tested on."""

    def speed(self, spec: ModelSpec, data: DataSpec) -> Speed:
        """Return how quick a model is on images of a dataset."""
        model = self.resolver.model(spec, data)
        if model not in self.speeds:
            pixels = self.resolver.data(data).images.shape[1:]
            images = torch.rand(BATCH, *pixels, generator=torch.Generator().manual_seed(0))
            try:
                self.speeds[model] = measure_speed(model, images.to(pick_device(self.resolver.config.device)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything
                raise UserError(f"model '{spec.label}' fails on random images: {describe_error(error)}") from error
        return self.speeds[model]

    def seconds(self, cell: Cell) -> float:
        """Return how long a cell takes at most; images crafted on surrogates are made once for all models."""
        task, own = cell.task, self.speed(cell.model, cell.data).per_pass
        if not task.surrogates:
            return cell.work * own
        others = sum(self.speed(spec, cell.data).per_pass for spec in task.surrogates.values())
        if not task.crafts_once(self.resolver):
            return cell.work * (own + others)
        images = (task.label, cell.data.model_dump_json())
        crafting = 0.0 if images in self.crafted else cell.work * others
        self.crafted.add(images)
        return crafting + (task.row_count or 0) * own

    def training(self, spec: ModelSpec, data: DataSpec) -> float:
        """Return how long a suite trains a model; a step of an adversary takes as long as one of the training."""
        model, options = self.resolver.model(spec, data), spec.train
        if options is None:
            return 0.0
        if not isinstance(model, Classifier):
            raise UserError(f"model '{spec.label}' cannot be trained: it is not a Classifier with a recipe.")
        views = {} if options.views is None else {"views": options.views}
        train_data = DataSpec(use=data.use, split="train", **{**data.options, **views})
        samples = options.limit or self.resolver.count_samples(train_data)
        gradients = (options.epochs or model.recipe.epochs) * samples * (1 + (options.adversary_steps or 0))
        return gradients * self.speed(spec, data).gradient


def measure_speed(model: nn.Module, images: Tensor) -> Speed:
    """Time passes of a model; of one that gives no gradients, only forward."""
    with eval_mode(model):
        _time(model, images[:2], gradient=True)  # kernels may have to be compiled
        forward, gradient = (
            min(_time(model, images, gradient=gradient) for _ in range(REPEATS)) for gradient in (False, True)
        )
    return Speed(forward / len(images), gradient / len(images))


def _time(model: nn.Module, images: Tensor, *, gradient: bool) -> float:
    """Return the seconds that a pass takes, with the gradients in the images and in the weights that are trained."""
    wanted = [images.clone().requires_grad_(), *(each for each in model.parameters() if each.requires_grad)]
    began = time.perf_counter()
    with torch.set_grad_enabled(gradient):
        total = model(wanted[0]).sum()
    if total.requires_grad:
        total = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)[0].sum()
    total.item()  # waits for the device
    return time.perf_counter() - began


def format_duration(seconds: float) -> str:
    """Return a duration as text: '40 s', '12 min', '3 h'."""
    unit, length = next((unit, length) for unit, length, limit in UNITS if seconds < limit * length)
    return f"{max(1, round(seconds / length))} {unit}"


def describe_machine(device: str) -> str:
    """Return where times were measured, e.g. 'cpu, 2 threads'."""
    place, threads = pick_device(device), torch.get_num_threads()
    return f"{place}, {threads} thread{'s' if threads > 1 else ''}" if place.type == "cpu" else str(place)
