"""The plan: a suite expanded into cells whose ids change when anything that decides their rows does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robustcaps.attacks.base import Attack
from robustcaps.attacks.evaluation import row_count
from robustcaps.data.base import Data, Progress
from robustcaps.diagnostics.kinds.lookup import diagnostic_options, kind_of
from robustcaps.errors import UserError, did_you_mean
from robustcaps.models.base import Classifier
from robustcaps.models.cards import weights_digest
from robustcaps.models.zoo import model_options, trained_options
from robustcaps.options import validate_options
from robustcaps.registry import ATTACKS, DATASETS, KINDS, MODELS, Registry
from robustcaps.suite.cell import AttackTask, Cell, DiagnosticTask
from robustcaps.suite.cell_id import Named, entry_of, external_code, package_code
from robustcaps.suite.resolve import Resolver, has_card
from robustcaps.suite.spec import AttackSpec, DataSpec, DiagnosticSpec, ModelSpec, Suite, meant_for
from robustcaps.utils.printable import printable

EVALUATION = ("robustcaps.attacks.evaluation", "robustcaps.attacks.examples", "robustcaps.models.precision")
"""The modules that turn a model, data and an attack into rows."""


def make_plan(suite: Suite, resolver: Resolver, *, source: str, progress: Progress | None = None) -> list[Cell]:
    """Return the cells of a suite; every spec is checked by building it, and an error names its place in `source`."""
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
    cells: list[Cell] = []
    for data_spec, loaded in data:
        cells += _cells_of_data(suite, resolver, data_spec, loaded, source)
    _check_names(cells, source)
    return cells


def _check_names(cells: list[Cell], source: str) -> None:
    """Refuse cells that tables could not distinguish: they would be averaged, and their costs added."""
    seen: dict[tuple[Any, ...], Cell] = {}
    for cell in cells:
        if cell.key not in seen:
            seen[cell.key] = cell
            continue
        if seen[cell.key].id == cell.id:
            raise UserError(f"{source}: '{cell.label}' is listed twice; remove one of the two entries.")
        (what,) = cell.task.names
        raise UserError(f"{source}: two different cells are called '{cell.label}'; give one {what} or model a name.")


def _parts(suite: Suite) -> Iterator[tuple[Registry[Any], str, list[Any]]]:
    yield DATASETS, "data", suite.data
    yield MODELS, "models", suite.models
    yield ATTACKS, "attacks", suite.attacks


def _cells_of_data(suite: Suite, resolver: Resolver, data_spec: DataSpec, data: Data, source: str) -> Iterator[Cell]:
    for m, model_spec in enumerate(suite.models):
        if not meant_for(model_spec.data, data_spec):
            continue
        with _place(f"{source}: models[{m}]"):
            model = resolver.model(model_spec, data_spec)
            check_fit(model, data)
            pair = _Pair(suite, resolver, model_spec, data_spec, data, _model_settings(model_spec, data_spec, model))
        for a, attack_spec in enumerate(suite.attacks):
            with _place(f"{source}: attacks[{a}]"):
                if _is_for(attack_spec, model_spec, data_spec):
                    yield from _attack_cells(pair, attack_spec)
        for d, diagnostic in enumerate(suite.diagnostics):
            with _place(f"{source}: diagnostics[{d}]"):
                if _is_for(diagnostic, model_spec, data_spec):
                    yield from _diagnostic_cells(pair, diagnostic)


@dataclass(frozen=True, eq=False)
class _Pair:
    """A model and a dataset of a suite, whose cells are planned."""

    suite: Suite
    resolver: Resolver
    model_spec: ModelSpec
    data_spec: DataSpec
    data: Data
    model_settings: dict[str, Any]

    def cell(self, task: AttackTask | DiagnosticTask, settings: dict[str, Any]) -> Cell:
        """Return the cell of a task."""
        return Cell(self.suite.name, self.model_spec, self.data_spec, task, settings)

    def code(self, modules: Sequence[str], parts: Sequence[Named]) -> str:
        """Return a digest of the code that evaluates the model on the data with some registered parts."""
        named: list[Named] = [(MODELS, self.model_spec.use), (DATASETS, self.data_spec.use), *parts]
        return package_code(modules, named)


def _attack_cells(pair: _Pair, spec: AttackSpec) -> Iterator[Cell]:
    """Yield a cell per seed; an attack without random numbers has one."""
    suite, resolver = pair.suite, pair.resolver
    attack = resolver.attack(spec)
    budget = attack.budgets[0].for_samples(pair.data, torch.arange(0))
    spec = spec.model_copy(update={"norm": budget.norm, "unit": budget.unit})
    rows = row_count(pair.data, attack)
    surrogates = _surrogates(attack, suite, pair.data_spec)
    attack_settings = {
        **_attack_settings(spec, attack, pair.data),
        **_surrogate_settings(surrogates, pair.data_spec, resolver),
    }
    parts: list[Named] = [(ATTACKS, name) for name in _attack_names(spec.use, attack)]
    settings = {
        "model": pair.model_settings,
        "data": {"digest": pair.data.digest},
        "attack": attack_settings,
        "code": pair.code(EVALUATION, [*parts, *((MODELS, each.use) for each in surrogates.values())]),
        **_precision_settings(resolver),
        **(batch_settings := _batch_settings(attack_settings, suite)),
    }
    work = _searches(rows, attack) * attack.passes
    from_plugin = any(not entry_of(*part).built_in for part in parts)
    is_whole = bool(batch_settings) or from_plugin or spec.time_limit is not None
    samples = None if is_whole else len(pair.data)
    for seed in suite.seeds if attack.randomised else suite.seeds[:1]:
        task = AttackTask(spec, seed, suite.batch_size, rows, work, from_plugin, surrogates, samples)
        yield pair.cell(task, {**settings, "seed": seed})


def _attack_names(name: str, attack: Attack) -> Iterator[str]:
    """Yield the registered names of an attack and of all attacks inside it."""
    yield name
    for part in attack.inner_attacks:
        yield from _attack_names((part.settings or {"name": part.name})["name"], part)


def _diagnostic_cells(pair: _Pair, spec: DiagnosticSpec) -> Iterator[Cell]:
    """Yield a cell per eps; a kind that takes no eps has one."""
    kind, options = kind_of(spec.use), diagnostic_options(spec.use, spec.options)
    data = pair.data.first(spec.limit)
    parts = list(kind.parts(options))
    external = {name: code for registry, name in parts if (code := external_code(registry, name))}
    with_eps, with_norm = (name in kind.harness_parameters for name in ("eps", "norm"))
    for name, takes in (("eps", with_eps), ("norm", with_norm)):
        if name in spec.model_fields_set and not takes:
            raise UserError(f"diagnostic '{spec.use}' takes no {name}.")
    diagnostic = {"use": spec.use, "options": options, **({"norm": spec.norm} if with_norm else {}), "parts": external}
    settings = {
        "kind": kind.name,
        "model": pair.model_settings,
        "data": {"digest": data.digest},
        "code": pair.code(kind.modules, parts),
        **_kind_code(kind.name),
        **_precision_settings(pair.resolver),
    }
    for eps in spec.eps if with_eps else [None]:
        budget = {} if eps is None else {"eps": eps}
        task = DiagnosticTask(spec, eps, len(data) * kind.passes)
        yield pair.cell(task, {**settings, "diagnostic": {**diagnostic, **budget}, "seed": task.seed})


def _kind_code(kind: str) -> dict[str, Any]:
    """Return the code of a kind that a plugin brings."""
    code = external_code(KINDS, kind)
    return {"kind_code": code} if code else {}


def _check_filters(suite: Suite, source: str) -> None:
    """Refuse models, attacks and diagnostics that are restricted to something the suite does not have."""
    labels = {
        "models": [label for spec in suite.models for label in spec.labels],
        "data": [spec.label for spec in suite.data],
    }
    for part in ("models", "attacks", "diagnostics"):
        for position, spec in enumerate(getattr(suite, part)):
            for kind, known in labels.items():
                for name in map(printable, getattr(spec, kind, None) or ()):
                    if name not in known:
                        place = f"{source}: {part}[{position}]: {kind}"
                        raise UserError(f"{place}: there is no '{name}' in this suite. {did_you_mean(name, known)}")


def _check_options(suite: Suite, resolver: Resolver, source: str) -> None:
    """Refuse wrong options of attacks and diagnostics before any data or weights are loaded."""
    for position, attack in enumerate(suite.attacks):
        with _place(f"{source}: attacks[{position}]"):
            resolver.attack(attack)
    for position, diagnostic in enumerate(suite.diagnostics):
        with _place(f"{source}: diagnostics[{position}]"):
            diagnostic_options(diagnostic.use, diagnostic.options)


def _is_for(spec: AttackSpec | DiagnosticSpec, model: ModelSpec, data: DataSpec) -> bool:
    """Return whether an attack or a diagnostic is meant for a model on a dataset."""
    return meant_for(spec.models, model) and meant_for(spec.data, data)


def _searches(rows: int, attack: Attack) -> int:
    """Return how many searches so many rows take: a minimum-norm attack searches once for all budgets."""
    return rows // len(attack.budgets) if attack.minimises_norm else rows


def check_fit(model: nn.Module, data: Data) -> None:
    """Refuse a zoo model on images that it was not built for, before anything is run."""
    if isinstance(model, Classifier):
        size = data.images.shape[-1]
        expected, actual = (model.channels, model.size, model.classes), (data.channels, size, data.classes)
        if expected != actual:
            shape = "{} channels of {} pixels, {} classes"
            raise UserError(f"it was built for {shape.format(*expected)}; '{data.name}' has {shape.format(*actual)}.")


def _model_settings(spec: ModelSpec, data: DataSpec, model: nn.Module) -> dict[str, Any]:
    name = spec.use.partition(":")[0]
    if has_card(spec):
        options = trained_options(spec.use, data=data.use, weights=spec.weights, options=spec.options)
    else:
        options = model_options(name, spec.options)
    return {"name": name, "options": options, "digest": weights_digest(model), **external_code(MODELS, name)}


def _precision_settings(resolver: Resolver) -> dict[str, Any]:
    """Return compile and autocast where they are on: they round differently."""
    on = resolver.config.precision.enabled
    return {"precision": on} if on else {}


def _batch_settings(attack: dict[str, Any], suite: Suite) -> dict[str, Any]:
    """Return the batch size where rows may depend on it: other libraries draw random numbers for whole batches."""
    external = "library" in attack or any(_batch_settings(part, suite) for part in attack.get("parts", ()))
    return {"batch_size": suite.batch_size} if external else {}


def _surrogates(attack: Attack, suite: Suite, data: DataSpec) -> dict[str, ModelSpec]:
    """Return the models an attack crafts on: those of the suite with that name, else those of the zoo."""
    own = {spec.label: spec for spec in suite.models if meant_for(spec.data, data)}
    return {name: own.get(printable(name)) or ModelSpec(use=name) for name in attack.surrogates}


def _surrogate_settings(surrogates: dict[str, ModelSpec], data: DataSpec, resolver: Resolver) -> dict[str, Any]:
    found = [_model_settings(spec, data, resolver.model(spec, data)) for spec in surrogates.values()]
    return {"surrogates": found} if found else {}


def _attack_settings(spec: AttackSpec, attack: Attack, data: Data) -> dict[str, Any]:
    options = validate_options(ATTACKS.entry(spec.use).factory, spec.options, where=f"attack '{spec.use}'")
    targets = None if spec.goal == "untargeted" else attack.goal_spec.targets(data.class_names)
    goal = {"goal": spec.goal, "targets": targets, "norm": spec.norm, "unit": spec.unit}
    sweep = [budget.eps for budget in attack.budgets]
    limit = {"max_queries": spec.max_queries} if spec.max_queries else {}
    parts = {"parts": [_part_settings(part) for part in attack.inner_attacks]} if attack.inner_attacks else {}
    code = external_code(ATTACKS, spec.use)
    return {"name": spec.use, "options": options, **goal, "eps": sweep, **limit, **parts, **code}


def _part_settings(part: Attack) -> dict[str, Any]:
    """Return the settings of an attack inside another one."""
    settings = part.settings or {"name": part.name}
    inner = {"parts": [_part_settings(inner) for inner in part.inner_attacks]} if part.inner_attacks else {}
    return {**settings, **inner, **external_code(ATTACKS, settings["name"])}


@contextmanager
def _place(where: str) -> Iterator[None]:
    """Add the place in the suite to an error."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
