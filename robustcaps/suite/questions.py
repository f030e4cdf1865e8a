"""A suite's diagnostics unfolded: one question is one model, one dataset, one diagnostic at one eps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from robustcaps.data.base import Data
from robustcaps.diagnostics.kinds.registry import examination_options, kind_of
from robustcaps.registry import ATTACKS, DIAGNOSTICS, Registry
from robustcaps.suite.cell_id import plugin_code, settings_id
from robustcaps.suite.spec import DataSpec, DiagnosticSpec, ModelSpec

ROWS_VERSION = 3
"""Raised when checks change what they say, so that stored answers are not taken for current ones."""
WITH_EPS = ("verdict", "detection")
"""What is asked at every eps of a diagnostic; other examinations have none."""
PASSES = {"verdict": 1500.0, "gradients": 9.0, "detection": 100.0, "overlap": 1.0, "views": 1.0}
"""About how many forward passes a sample takes: verdicts search at random for what gradients leave."""
BY_SAMPLE = ("views", "overlap")
"""Whose progress counts samples."""


@dataclass(frozen=True)
class Question:
    """One model, one dataset, one diagnostic at one eps. Small, and answered anywhere."""

    suite: str
    model: ModelSpec
    data: DataSpec
    diagnostic: DiagnosticSpec
    eps: float
    seed: int
    rows: int
    """How many steps its progress has: its checks, losses or attacks, or its samples."""
    work: float
    """About how many forward passes of one image it takes at most."""
    settings: dict[str, Any]
    """Everything that decides the columns other than names, resolved: defaults filled in, digests of what is read."""

    @property
    def kind(self) -> str:
        """What its rows are: a verdict's, or gradients'."""
        return kind_of(self.diagnostic.use)

    @property
    def label(self) -> str:
        """What progress bars and messages call it."""
        budget = f" eps {self.eps:g}" if self.kind in WITH_EPS else ""
        return f"{self.model.label} / {self.data.label} / {self.diagnostic.label}{budget}"

    @property
    def names(self) -> dict[str, str]:
        """The columns that only name things: they may change without a new computation."""
        labels = {"model": self.model.label, "data": self.data.label, "diagnostic": self.diagnostic.label}
        return {"suite": self.suite, **labels}

    @property
    def key(self) -> tuple[Any, ...]:
        """What tables tell it apart by."""
        return (*self.names.values(), self.eps, self.diagnostic.norm)

    @property
    def id(self) -> str:
        """A hash of the settings, which hold the digests of weights, data and plugin code."""
        return settings_id(self.settings)


def ask(
    suite: str, model: ModelSpec, data_spec: DataSpec, data: Data, spec: DiagnosticSpec, network: dict[str, Any]
) -> Iterator[Question]:
    """Return the questions of a diagnostic about a model; `network` are the model's own settings."""
    options = examination_options(spec.use, spec.options)
    kind = kind_of(spec.use)
    seen = data.first(spec.limit)
    about = {"use": spec.use, "options": options, "norm": spec.norm, **_code(spec)}
    named = (options.get(name) for name in ("checks", "losses", "attacks"))
    steps = len(next(filter(None, named), DIAGNOSTICS.names()))
    steps = len(seen) if kind in BY_SAMPLE else steps
    for eps in spec.eps if kind in WITH_EPS else spec.eps[:1]:
        budget = {"eps": eps} if kind in WITH_EPS else {}
        parts = {"model": network, "data": {"digest": seen.digest}, "diagnostic": {**about, **budget}}
        settings = {"kind": kind, "rows_version": ROWS_VERSION, **parts, "seed": 0}
        work = len(seen) * PASSES[kind]
        yield Question(suite, model, data_spec, spec, eps, 0, steps, work, settings)


def _code(spec: DiagnosticSpec) -> dict[str, Any]:
    """Return the code of plugins' checks and attacks, and the libraries', if any are among those asked for."""
    asked: dict[Registry[Any], Any] = {DIAGNOSTICS: spec.options.get("checks") or DIAGNOSTICS.names()}
    asked[ATTACKS] = spec.options.get("attacks") or ()
    parts = [(registry, part) for registry, parts in asked.items() for part in parts]
    names = [(registry, part if isinstance(part, str) else part.get("use", "")) for registry, part in parts]
    codes = {name: plugin_code(registry, name) for registry, name in names}
    return {"plugins": {name: code for name, code in codes.items() if code}}
