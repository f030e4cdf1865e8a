"""A suite unfolded into cells: independent pieces of work with ids that change when anything they rest on does."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.evaluation import row_count
from robustcaps.models.cards import weights_digest
from robustcaps.registry import ATTACKS, DATASETS, MODELS, Registry
from robustcaps.suite import AttackSpec, DataSpec, ModelSpec, Spec, Suite
from robustcaps.workshop import Workshop

ROWS_VERSION = 1
"""Raised when the built-in code changes what rows say, so that stored cells are not taken for current ones."""


@dataclass(frozen=True)
class Cell:
    """One model, one dataset, one attack with its whole sweep, one seed. Small, and evaluated anywhere."""

    suite: str
    model: ModelSpec
    data: DataSpec
    attack: AttackSpec
    seed: int
    batch_size: int
    rows: int
    """How many rows it will have."""
    work: float
    """About how many forward passes of one image it takes at most."""
    digests: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """What progress bars and messages call it."""
        aim = " targeted" if self.attack.goal == "targeted" else ""
        seed = f" seed {self.seed}" if self.seed else ""
        return f"{self.model.label} / {self.data.label} / {self.attack.label}{aim}{seed}"

    @property
    def names(self) -> dict[str, str]:
        """The columns that only name things: they may change without a new computation."""
        labels = {"model": self.model.label, "data": self.data.label, "attack": self.attack.label}
        return {"suite": self.suite, **labels}

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the other columns, as JSON."""
        nameless: dict[str, Any] = {"exclude": {"name"}, "mode": "json"}
        return {
            "rows_version": ROWS_VERSION,
            "model": self.model.model_dump(**nameless),
            "data": self.data.model_dump(**nameless),
            "attack": self.attack.model_dump(**nameless),
            "seed": self.seed,
            "digests": dict(self.digests),
        }

    @property
    def id(self) -> str:
        """A hash of the settings and of the digests of weights, data and plugin code."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


def make_plan(suite: Suite, workshop: Workshop, *, source: str, progress: Progress | None = None) -> list[Cell]:
    """Return the cells of a suite, every spec checked by making it; a mistake is named with its place in `source`."""
    for registry, part, specs in _parts(suite):
        for position, spec in enumerate(specs):
            with _place(f"{source}: {part}[{position}].use"):
                registry.entry(spec.use.partition(":")[0])
    data = []
    for position, spec in enumerate(suite.data):
        with _place(f"{source}: data[{position}]"):
            data.append((spec, workshop.data(spec, progress)))
    cells: list[Cell] = []
    for data_spec, loaded in data:
        cells += _cells_of_data(suite, workshop, data_spec, loaded, source)
    return list({cell.id: cell for cell in cells}.values())


def _parts(suite: Suite) -> Iterator[tuple[Registry[Any], str, list[Any]]]:
    yield DATASETS, "data", suite.data
    yield MODELS, "models", suite.models
    yield ATTACKS, "attacks", suite.attacks


def _cells_of_data(suite: Suite, workshop: Workshop, data_spec: DataSpec, data: Data, source: str) -> Iterator[Cell]:
    for m, model_spec in enumerate(suite.models):
        with _place(f"{source}: models[{m}]"):
            model = workshop.model(model_spec, data_spec)
        digests = {"weights": weights_digest(model), "data": data.digest, **_plugin_code(MODELS, model_spec)}
        for a, attack_spec in enumerate(suite.attacks):
            with _place(f"{source}: attacks[{a}]"):
                attack = workshop.attack(attack_spec)
                rows = row_count(data, attack)
            found = tuple(sorted({**digests, **_plugin_code(ATTACKS, attack_spec)}.items()))
            for seed in suite.seeds if attack.randomised else suite.seeds[:1]:
                batch = suite.batch_size
                work = rows * attack.passes
                yield Cell(suite.name, model_spec, data_spec, attack_spec, seed, batch, rows, work, found)


def _plugin_code(registry: Registry[Any], spec: Spec) -> dict[str, str]:
    """Return the digest of a plugin's file, so that editing it makes new cells; nothing for built-in ones."""
    entry = registry.entry(spec.use.partition(":")[0])
    if entry.built_in:
        return {}
    try:
        code = inspect.getsource(inspect.getmodule(entry.factory) or entry.factory)
    except (OSError, TypeError):
        code = repr(entry.source)
    return {f"{registry.kind} plugin": hashlib.sha256(code.encode()).hexdigest()}


@contextmanager
def _place(where: str) -> Iterator[None]:
    """Say where in the suite a mistake is."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
