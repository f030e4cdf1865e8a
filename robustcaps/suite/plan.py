"""A suite unfolded into cells: independent pieces of work with ids that change when anything they rest on does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.evaluation import row_count
from robustcaps.data.base import Data, Progress
from robustcaps.diagnostics.kinds.registry import examination_options
from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.base import Classifier
from robustcaps.models.cards import weights_digest
from robustcaps.models.zoo import model_options, trained_options
from robustcaps.options import validate_options
from robustcaps.registry import ATTACKS, DATASETS, MODELS, Registry
from robustcaps.suite.cell_id import plugin_code, settings_id
from robustcaps.suite.questions import Question, ask
from robustcaps.suite.resolve import Resolver, has_card
from robustcaps.suite.spec import AttackSpec, DataSpec, DiagnosticSpec, ModelSpec, Suite, meant_for

ROWS_VERSION = 4
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
    settings: dict[str, Any]
    """Everything that decides the columns other than names, resolved: defaults filled in, digests of what is read."""
    surrogates: dict[str, ModelSpec] = field(default_factory=dict)
    """The models that the attack crafts on, by the names it calls them."""

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
    def kind(self) -> str:
        """What its rows are."""
        return "attack"

    @property
    def key(self) -> tuple[Any, ...]:
        """What tables tell it apart by."""
        return (*self.names.values(), self.attack.goal, self.attack.norm, self.attack.unit, self.seed)

    @property
    def id(self) -> str:
        """A hash of the settings, which hold the digests of weights, data and plugin code."""
        return settings_id(self.settings)


Work = Cell | Question
"""What a suite unfolds into."""


def make_plan(suite: Suite, resolver: Resolver, *, source: str, progress: Progress | None = None) -> list[Work]:
    """Return the work of a suite, every spec checked by making it; a mistake is named with its place in `source`."""
    for registry, part, specs in _parts(suite):
        for position, spec in enumerate(specs):
            with _place(f"{source}: {part}[{position}].use"):
                registry.entry(spec.use.partition(":")[0])
    _check_filters(suite, source)
    _check_options(suite, resolver, source)
    data = []
    for position, spec in enumerate(suite.data):
        with _place(f"{source}: data[{position}]"):
            data.append((spec, resolver.data(spec, progress)))
    cells: list[Work] = []
    for data_spec, loaded in data:
        cells += _cells_of_data(suite, resolver, data_spec, loaded, source)
    _check_names(cells, source)
    return cells


def _check_names(cells: list[Work], source: str) -> None:
    """Refuse different cells that tables could not tell apart."""
    seen: dict[tuple[Any, ...], Work] = {}
    for cell in cells:
        if seen.setdefault((cell.kind, *cell.key), cell).id != cell.id:
            what = "attack" if isinstance(cell, Cell) else "diagnostic"
            raise UserError(
                f"{source}: two different cells are called '{cell.label}'; give one {what} or model a name."
            )


def _parts(suite: Suite) -> Iterator[tuple[Registry[Any], str, list[Any]]]:
    yield DATASETS, "data", suite.data
    yield MODELS, "models", suite.models
    yield ATTACKS, "attacks", suite.attacks


def _cells_of_data(suite: Suite, resolver: Resolver, data_spec: DataSpec, data: Data, source: str) -> Iterator[Work]:
    for m, model_spec in enumerate(suite.models):
        if not meant_for(model_spec.data, data_spec):
            continue
        with _place(f"{source}: models[{m}]"):
            model = resolver.model(model_spec, data_spec)
            _check_fit(model, data)
            network = _model_settings(model_spec, data_spec, model)
        for a, attack_spec in enumerate(suite.attacks):
            with _place(f"{source}: attacks[{a}]"):
                if not _is_for(attack_spec, model_spec, data_spec):
                    continue
                attack = resolver.attack(attack_spec)
                rows = row_count(data, attack)
                surrogates = _surrogates(attack, suite, data_spec)
                chosen = {
                    **_attack_settings(attack_spec, attack, data),
                    **_surrogate_settings(surrogates, data_spec, resolver),
                }
            for seed in suite.seeds if attack.randomised else suite.seeds[:1]:
                parts = {"model": network, "data": {"digest": data.digest}, "attack": chosen}
                extra = {**_execution_settings(resolver), **_batch_settings(chosen, suite)}
                settings = {"rows_version": ROWS_VERSION, **parts, "seed": seed, **extra}
                specs = (model_spec, data_spec, attack_spec)
                work = _searches(rows, attack) * attack.passes
                yield Cell(suite.name, *specs, seed, suite.batch_size, rows, work, settings, surrogates)
        for d, diagnostic in enumerate(suite.diagnostics):
            with _place(f"{source}: diagnostics[{d}]"):
                if _is_for(diagnostic, model_spec, data_spec):
                    yield from ask(suite.name, model_spec, data_spec, data, diagnostic, network)


def _check_filters(suite: Suite, source: str) -> None:
    """Refuse models, attacks and diagnostics that are said to be for something that the suite does not have."""
    labels = {"models": [spec.label for spec in suite.models], "data": [spec.label for spec in suite.data]}
    for part in ("models", "attacks", "diagnostics"):
        for position, spec in enumerate(getattr(suite, part)):
            for kind, known in labels.items():
                for name in getattr(spec, kind, None) or ():
                    if name not in known:
                        place = f"{source}: {part}[{position}]: {kind}"
                        raise UserError(f"{place}: there is no '{name}' in this suite. {did_you_mean(name, known)}")


def _check_options(suite: Suite, resolver: Resolver, source: str) -> None:
    """Refuse wrong options of attacks and diagnostics, before any file of data or weights is looked for."""
    for position, attack in enumerate(suite.attacks):
        with _place(f"{source}: attacks[{position}]"):
            resolver.attack(attack)
    for position, diagnostic in enumerate(suite.diagnostics):
        with _place(f"{source}: diagnostics[{position}]"):
            examination_options(diagnostic.use, diagnostic.options)


def _is_for(spec: AttackSpec | DiagnosticSpec, model: ModelSpec, data: DataSpec) -> bool:
    """Return whether an attack or a diagnostic is meant for a model on a dataset."""
    return meant_for(spec.models, model) and meant_for(spec.data, data)


def _searches(rows: int, attack: Attack) -> int:
    """Return how often an attack sets out for so many rows: one that minimises does so once for all budgets."""
    return rows // len(attack.budgets) if attack.closest else rows


def _check_fit(model: nn.Module, data: Data) -> None:
    """Refuse a zoo model on images that it was not built for, before anything is run."""
    if isinstance(model, Classifier):
        size = data.images.shape[-1]
        built, given = (model.channels, model.size, model.classes), (data.channels, size, data.classes)
        if built != given:
            words = "{} channels of {} pixels, {} classes"
            raise UserError(f"it was built for {words.format(*built)}; '{data.name}' has {words.format(*given)}.")


def _model_settings(spec: ModelSpec, data: DataSpec, model: nn.Module) -> dict[str, Any]:
    name = spec.use.partition(":")[0]
    if has_card(spec):
        options = trained_options(spec.use, data=data.use, weights=spec.weights, options=spec.options)
    else:
        options = model_options(name, spec.options)
    return {"name": name, "options": options, "digest": weights_digest(model), **plugin_code(MODELS, name)}


def _execution_settings(resolver: Resolver) -> dict[str, Any]:
    """Return how networks are computed, if not as they are written; else nothing, as in cells of old."""
    on = resolver.config.precision.switched_on
    return {"execution": on} if on else {}


def _batch_settings(attack: dict[str, Any], suite: Suite) -> dict[str, Any]:
    """Return the batch size where rows may depend on it: other libraries draw random numbers for whole batches."""
    foreign = "library" in attack or any(_batch_settings(part, suite) for part in attack.get("parts", ()))
    return {"batch_size": suite.batch_size} if foreign else {}


def _surrogates(attack: Attack, suite: Suite, data: DataSpec) -> dict[str, ModelSpec]:
    """Return the models an attack crafts on: those that the suite calls so, else those of the zoo."""
    own = {spec.label: spec for spec in suite.models if meant_for(spec.data, data)}
    return {name: own.get(name) or ModelSpec(use=name) for name in attack.surrogates}


def _surrogate_settings(surrogates: dict[str, ModelSpec], data: DataSpec, resolver: Resolver) -> dict[str, Any]:
    found = [_model_settings(spec, data, resolver.model(spec, data)) for spec in surrogates.values()]
    return {"surrogates": found} if found else {}


def _attack_settings(spec: AttackSpec, attack: Attack, data: Data) -> dict[str, Any]:
    options = validate_options(ATTACKS.entry(spec.use).factory, spec.options, where=f"attack '{spec.use}'")
    targets = None if spec.goal == "untargeted" else attack.aim.targets(data.class_names)
    wanted = {"goal": spec.goal, "targets": targets, "norm": spec.norm, "unit": spec.unit}
    sweep = [budget.eps for budget in attack.budgets]
    limit = {"max_queries": spec.max_queries} if spec.max_queries else {}
    made_of = {"parts": [_part_settings(part) for part in attack.parts]} if attack.parts else {}
    code = plugin_code(ATTACKS, spec.use)
    return {"name": spec.use, "options": options, **wanted, "eps": sweep, **limit, **made_of, **code}


def _part_settings(part: Attack) -> dict[str, Any]:
    """Return what decides an attack inside another one."""
    settings = part.settings or {"name": part.name}
    inner = {"parts": [_part_settings(inner) for inner in part.parts]} if part.parts else {}
    return {**settings, **inner, **plugin_code(ATTACKS, settings["name"])}


@contextmanager
def _place(where: str) -> Iterator[None]:
    """Say where in the suite a mistake is."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
