"""Cells: independent units of work. A cell is one model, one dataset and one task: an attack or a diagnostic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from robustcaps.attacks.evaluation import evaluate
from robustcaps.attacks.examples import ExampleImages
from robustcaps.data.base import Progress
from robustcaps.diagnostics.kinds.base import DiagnosticKind
from robustcaps.diagnostics.kinds.lookup import diagnostic_options, kind_of
from robustcaps.errors import UserError
from robustcaps.suite.cell_id import settings_id
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.spec import AttackSpec, DataSpec, DiagnosticSpec, ModelSpec
from robustcaps.utils.spans import Span

Warn = Callable[[str], None]
"""Takes a note on a cell's rows for the user."""
Compute = Callable[[Progress | None, Warn], pd.DataFrame]
"""The computation of a cell's rows, with everything it needs at hand."""
PLUGIN_TIME_LIMIT = 3600.0
"""Seconds that an attack of a plugin may take if the suite does not say otherwise."""


@dataclass(frozen=True)
class AttackTask:
    """An attack with its whole eps sweep, and one seed."""

    attack: AttackSpec
    seed: int
    batch_size: int
    row_count: int
    work: float
    """About how many forward passes of one image it takes at most."""
    from_plugin: bool = False
    """Whether the attack, or one that it is made of, is a plugin's."""
    surrogates: Mapping[str, ModelSpec] = field(default_factory=dict)
    """The models that the attack crafts on, by the names it calls them."""
    sample_count: int | None = None
    """Number of samples if shards may divide them: no row depends on other batches, and no time limit is the cell's."""

    @property
    def kind(self) -> str:
        """The kind of its rows."""
        return "attack"

    @property
    def label(self) -> str:
        """Its name in messages and progress bars."""
        goal = " targeted" if self.attack.goal == "targeted" else ""
        seed = f" seed {self.seed}" if self.seed else ""
        return f"{self.attack.label}{goal}{seed}"

    @property
    def names(self) -> dict[str, str]:
        """The column that names it."""
        return {"attack": self.attack.label}

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from other attacks of its name in tables."""
        return (self.attack.goal, self.attack.norm, self.attack.unit, self.seed)

    @property
    def time_limit(self) -> float | None:
        """Seconds after which it is stopped, in a process of its own; None runs it here, without a limit."""
        return self.attack.time_limit or (PLUGIN_TIME_LIMIT if self.from_plugin else None)

    @property
    def has_own_time_limit(self) -> bool:
        """Whether the suite sets its time limit."""
        return self.attack.time_limit is not None

    def is_known(self, resolver: Resolver) -> bool:
        """Return whether the attack, and every attack inside it, is registered in this process."""
        try:
            resolver.attack(self.attack)
        except UserError:
            return False
        return True

    def crafts_once(self, resolver: Resolver) -> bool:
        """Return whether its images are crafted once and then tested on every model."""
        return bool(resolver.attack(self.attack).surrogate_label)

    def prepare(self, cell: Cell, resolver: Resolver, samples: Span | None) -> Compute:
        """Build model, data and attack; return the evaluation of some samples, or of all."""
        model, data = resolver.model(cell.model, cell.data), resolver.data(cell.data)
        attack = resolver.attack(self.attack)
        surrogates = {name: resolver.model(spec, cell.data) for name, spec in self.surrogates.items()}
        several_targets = attack.goal_spec.goal == "targeted" and len(attack.goal_spec.targets(data.class_names)) > 1
        examples = ExampleImages(model, data, several_targets=several_targets)

        def compute(progress: Progress | None, warn: Warn) -> pd.DataFrame:
            options: dict[str, Any] = {"seed": self.seed, "batch_size": self.batch_size, "samples": samples}
            options |= {"extra_columns": examples, "load_surrogate": surrogates.__getitem__}
            return evaluate(model, data, attack, **options, progress=progress, warn=warn)

        return compute


@dataclass(frozen=True)
class DiagnosticTask:
    """A diagnostic, at one eps if its kind has any."""

    diagnostic: DiagnosticSpec
    eps: float | None
    work: float
    """About how many forward passes of one image it takes at most."""
    seed: int = 0
    surrogates: Mapping[str, ModelSpec] = field(default_factory=dict)
    time_limit: float | None = None
    row_count: int | None = None
    """Not known beforehand."""
    sample_count: int | None = None
    """None: a diagnostic is never divided among shards, because kinds may compare samples with each other."""

    @property
    def diagnostic_kind(self) -> DiagnosticKind:
        """What measures and shows its rows."""
        return kind_of(self.diagnostic.use)

    @property
    def kind(self) -> str:
        """The kind of its rows."""
        return self.diagnostic_kind.name

    @property
    def label(self) -> str:
        """Its name in messages and progress bars."""
        return self.diagnostic.label if self.eps is None else f"{self.diagnostic.label} eps {self.eps:g}"

    @property
    def names(self) -> dict[str, str]:
        """The column that names it."""
        return {"diagnostic": self.diagnostic.label}

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from other diagnostics of its name in tables."""
        return (self.eps, self.diagnostic.norm)

    @property
    def has_own_time_limit(self) -> bool:
        """Whether the suite sets its time limit."""
        return False

    def is_known(self, _resolver: Resolver) -> bool:
        """Return True: diagnostics are executed in the process that planned them."""
        return True

    def crafts_once(self, _resolver: Resolver) -> bool:
        """Return False: nothing is crafted for other models."""
        return False

    def prepare(self, cell: Cell, resolver: Resolver, _samples: Span | None) -> Compute:
        """Build model and data; return the measurement."""
        spec, kind = self.diagnostic, self.diagnostic_kind
        model, data = resolver.model(cell.model, cell.data), resolver.data(cell.data).first(spec.limit)
        available = {"eps": self.eps, "norm": spec.norm, "seed": self.seed}
        arguments = {name: value for name, value in available.items() if name in kind.harness_parameters}
        arguments |= diagnostic_options(spec.use, spec.options)

        def compute(progress: Progress | None, _warn: Warn) -> pd.DataFrame:
            if "progress" in kind.harness_parameters:
                return kind.measure_function(model, data, **arguments, progress=progress)
            return kind.measure_function(model, data, **arguments)

        return compute


@dataclass(frozen=True)
class Cell:
    """One model, one dataset and one task. Small, and executed anywhere with the same rows."""

    suite: str
    model: ModelSpec
    data: DataSpec
    task: AttackTask | DiagnosticTask
    settings: dict[str, Any]
    """Everything that decides the rows, resolved: defaults filled in, digests of weights, data and code."""

    @property
    def label(self) -> str:
        """Its name in messages and progress bars."""
        return f"{self.model.label} / {self.data.label} / {self.task.label}"

    @property
    def names(self) -> dict[str, str]:
        """The columns that only name things: they may change without a new computation."""
        return {"suite": self.suite, "model": self.model.label, "data": self.data.label, **self.task.names}

    @property
    def kind(self) -> str:
        """The kind of its rows: 'attack', or a kind of diagnostic."""
        return self.task.kind

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from other cells in tables."""
        return (self.kind, *self.names.values(), *self.task.key)

    @property
    def work(self) -> float:
        """About how many forward passes of one image it takes at most."""
        return self.task.work

    @property
    def id(self) -> str:
        """A hash of the settings: the name under which its rows are stored."""
        return settings_id(self.settings)

    def prepare(self, resolver: Resolver, samples: Span | None = None) -> Compute:
        """Build everything the cell needs; return the computation of its rows, or of those of some samples."""
        return self.task.prepare(self, resolver, samples)
