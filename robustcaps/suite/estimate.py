"""How long a suite will take on this machine: a few passes of each model, timed, times the passes that work needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from robustcaps.errors import UserError
from robustcaps.models.base import Classifier
from robustcaps.models.inference import eval_mode
from robustcaps.suite.plan import Cell, Work
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.spec import DataSpec, ModelSpec, Suite, meant_for
from robustcaps.suite.train_models import data_to_train_on
from robustcaps.utils.devices import pick_device

BATCH = 16
"""How many images are timed together."""
TIMED = 2
"""How often; the quickest counts."""
UNITS = (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48), ("days", 86400, float("inf")))
"""Words for durations, how many seconds each is, and up to how many of it are said."""


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
class Estimate:
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


def estimate(suite: Suite, cells: Sequence[Work], resolver: Resolver) -> list[Estimate]:
    """Return about how long a suite takes, a line per model and dataset; `cells` are its plan."""
    clock = Clock(resolver)
    seconds = [(cell, clock.seconds(cell)) for cell in cells]
    lines = []
    for data in suite.data:
        for spec in suite.models:
            if meant_for(spec.data, data):
                work = sum(taken for cell, taken in seconds if cell.model == spec and cell.data == data)
                here = spec.train is not None and data_to_train_on(spec, suite) == data
                training = clock.training(spec, data) if here else 0.0
                lines.append(Estimate(spec.label, data.label, clock.speed(spec, data), work, training))
    return lines


@dataclass(frozen=True, eq=False)
class Clock:
    """Tells how long work takes; each model is timed once."""

    resolver: Resolver
    speeds: dict[nn.Module, Speed] = field(default_factory=dict)
    crafted: set[tuple[str, str]] = field(default_factory=set)
    """(attack, data): whose images are there already, for the next model that they are tried on."""

    def speed(self, spec: ModelSpec, data: DataSpec) -> Speed:
        """Return how quick a model is on images of a dataset."""
        model = self.resolver.model(spec, data)
        if model not in self.speeds:
            pixels = self.resolver.data(data).images.shape[1:]
            images = torch.rand(BATCH, *pixels, generator=torch.Generator().manual_seed(0))
            try:
                self.speeds[model] = measure_speed(model, images.to(pick_device(self.resolver.config.device)))
            except Exception as error:
                words = f"{type(error).__name__}: {error}".splitlines()[0]
                raise UserError(f"model '{spec.label}' fails on random images: {words}") from error
        return self.speeds[model]

    def seconds(self, cell: Work) -> float:
        """Return how long a cell takes at most; images crafted on surrogates are made once for all models."""
        own = self.speed(cell.model, cell.data).per_pass
        if not isinstance(cell, Cell) or not cell.surrogates:
            return cell.work * own
        others = sum(self.speed(spec, cell.data).per_pass for spec in cell.surrogates.values())
        if not self.resolver.attack(cell.attack).crafted_on:
            return cell.work * (own + others)
        images = (cell.attack.model_dump_json(), cell.data.model_dump_json())
        crafting = 0.0 if images in self.crafted else cell.work * others
        self.crafted.add(images)
        return crafting + cell.rows * own

    def training(self, spec: ModelSpec, data: DataSpec) -> float:
        """Return how long a suite trains a model; a step of an adversary takes as long as one of the training."""
        model, how = self.resolver.model(spec, data), spec.train
        if how is None:
            return 0.0
        if not isinstance(model, Classifier):
            raise UserError(f"model '{spec.label}' cannot be trained: it is not a Classifier with a recipe.")
        options = {**data.options, **({} if how.views is None else {"views": how.views})}
        samples = how.limit or len(self.resolver.data(DataSpec(use=data.use, split="train", **options)))
        gradients = (how.epochs or model.recipe.epochs) * samples * (1 + (how.adversary_steps or 0))
        return gradients * self.speed(spec, data).gradient


def measure_speed(model: nn.Module, images: Tensor) -> Speed:
    """Time passes of a model; of one that gives no gradients, only forward."""
    with eval_mode(model):
        _time(model, images[:2], gradient=True)  # kernels may have to be compiled
        forward, gradient = (
            min(_time(model, images, gradient=gradient) for _ in range(TIMED)) for gradient in (False, True)
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


def in_words(seconds: float) -> str:
    """Return a duration as people say it: '40 s', '12 min', '3 h'."""
    unit, length = next((unit, length) for unit, length, most in UNITS if seconds < most * length)
    return f"{max(1, round(seconds / length))} {unit}"


def describe_machine(device: str) -> str:
    """Return where times were measured, e.g. 'cpu, 2 threads'."""
    place, threads = pick_device(device), torch.get_num_threads()
    return f"{place}, {threads} thread{'s' if threads > 1 else ''}" if place.type == "cpu" else str(place)
