"""Suite files: TOML that names models, data, attacks and diagnostics, validated with the place of every mistake."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from robustcaps.errors import UserError, did_you_mean
from robustcaps.options import MAX_COUNT, MAX_SEED, NormName, Unit, Views, first_problem
from robustcaps.training_options import Holdout, TrainingOptions
from robustcaps.utils.printable import printable
from robustcaps.utils.toml import MAX_INTEGER, parse_toml


def _finite_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise ValueError("must be a finite number")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError("is too large")
    if value < 0:
        raise ValueError("must not be negative")
    return value


def _as_list(value: object) -> object:
    return value if value is None or isinstance(value, list) else [value]


def _not_blank(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be blank")
    return value


def _without_nul(value: object) -> object:
    if "\0" in str(value):
        raise ValueError("a path must not contain a NUL character")
    return value


FilePath = Annotated[Path, BeforeValidator(_without_nul)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


def _distinct(values: list[int]) -> list[int]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} is listed twice; every seed counts once")
    return values


MAX_PER_TASK = 1024
"""The most CPUs or GPUs that a task may take."""
WORST_CASE = "worst case of all"
"""Label of the per-sample worst case over all attacks; no attack may have it."""

Eps = Annotated[float, BeforeValidator(_finite_number)]
Sweep = Annotated[list[Eps], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]


class Spec(BaseModel):
    """Something registered under the name `use`; keys that are not fields are its options, checked by its signature."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str = Field(min_length=1)
    """The registered name; `robustcaps list` shows them all."""
    name: Annotated[str | None, BeforeValidator(_not_blank)] = None
    """What tables and figures call it; by default `use`."""

    @property
    def label(self) -> str:
        """Its name in tables and figures, without control characters."""
        return printable(self.name or self.use)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that select it."""
        return (self.label,)

    @property
    def options(self) -> dict[str, Any]:
        """The keys that are not fields."""
        return dict(self.model_extra or {})


Names = Annotated[list[str], Field(min_length=1)] | None
"""Labels of models or datasets that something is restricted to."""


def meant_for(names: Names, spec: Spec) -> bool:
    """Return whether a model (or its group) or a dataset is among the names; without names, all are."""
    return names is None or not set(map(printable, names)).isdisjoint(spec.labels)


class TrainSpec(TrainingOptions):
    """Options of a model that the suite trains itself; by default on all training samples."""

    holdout: Holdout = 0
    """Training instances per class held out for validation; by default none."""
    views: Views | None = None
    """The viewpoints to train on (default: those of the suite's data)."""
    seeds: Annotated[list[Seed], Field(min_length=2), AfterValidator(_distinct)] | None = None
    """Train a group of models that differ in nothing but the seed."""

    @model_validator(mode="after")
    def _has_one_kind_of_seed(self) -> Self:
        if self.seeds is not None and "seed" in self.model_fields_set:
            raise ValueError("'seed' and 'seeds' are mutually exclusive")
        return self


class ModelSpec(Spec):
    """A model: a zoo name (with a tag: 'cnn:b'), or a plugin's.

    Its weights are the shipped ones, those of a file, those that the suite trains, or those that the plugin brings.
    """

    weights: FilePath | None = None
    """A safetensors file written by `robustcaps train`, instead of the shipped weights."""
    train: TrainSpec | None = None
    """Train the model before it is attacked, once per out folder."""
    untrained: bool = False
    """Allow a network with random weights; without it, a model that nobody has trained is refused."""
    data: Names = None
    """The datasets it is evaluated on, by their labels; all by default."""
    group: str | None = None
    """Models of a group differ in the seed of their training: `auc` shows their mean and how much they differ."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that select it: its own and that of its group."""
        return (self.label,) if self.group is None else (self.label, printable(self.group))

    def members(self) -> list[ModelSpec]:
        """Return one model per seed of its training, named after it; itself unless there are several."""
        if self.train is None or self.train.seeds is None:
            return [self]
        return [
            self.model_copy(
                update={
                    "name": f"{self.label}, seed {seed}",
                    "group": self.group or self.label,
                    "train": self.train.model_copy(update={"seed": seed, "seeds": None}),
                }
            )
            for seed in self.train.seeds
        ]


class DataSpec(Spec):
    """A dataset, its split, and which samples to take."""

    split: Literal["train", "test"] = "test"
    """Which part of the dataset."""
    limit: Count | None = None
    """Take at most so many samples."""
    skip: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    """Leave out the first so many samples; `index` then counts from the first that is taken."""


class AttackSpec(Spec):
    """An attack, its budgets and its goal."""

    @property
    def label(self) -> str:
        """Its name in tables and figures; a surrogate is part of it, and the version of AutoAttack."""
        if self.name is None and self.use == "autoattack":
            return f"AutoAttack ({printable(str(self.options.get('version', 'standard')))})"
        surrogate = self.options.get("surrogate", "")
        models = "+".join(map(str, surrogate)) if isinstance(surrogate, list) else str(surrogate)
        return printable(self.name or f"{self.use} {models}".strip())

    eps: Annotated[Sweep | None, BeforeValidator(_as_list)] = None
    """Largest perturbations, one or several; an attack sweeps them in one cell."""
    norm: NormName | None = None
    """What eps bounds: a norm, or transformations; by default the attack's own, which is mostly linf."""
    unit: Unit | None = None
    """The unit of eps, by default the first that the norm has: parts of the pixel range [0, 1] (`pixel`) or standard
    deviations of each image (`std`), changed values (`count`), or degrees."""
    goal: Literal["untargeted", "targeted"] = "untargeted"
    """Any wrong class, or a certain one."""
    target: int | str | None = None
    """Of a targeted attack: a class by name or number, `every`, `least-likely` or `random`."""
    models: Names = None
    """The models it is run on, by their labels; all by default."""
    data: Names = None
    """The datasets it is run on, by their labels; all by default."""
    max_queries: Count | None = None
    """Largest number of queries to the attacked model per sample and eps."""
    time_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds that a cell may take; by default an hour for a plugin's attack, no limit for a built-in one."""

    @model_validator(mode="after")
    def _is_not_reserved(self) -> Self:
        if " ".join(self.label.split()).lower() == WORST_CASE:
            raise ValueError(f"'{WORST_CASE}' is the name of a line that tables compute; choose another name")
        return self


class DiagnosticSpec(Spec):
    """A diagnostic of the models: a kind (verdict, gradients, detection, overlap, views), or a single check."""

    use: str = Field(default="verdict", min_length=1)
    """A kind of diagnostic, or the name of a single check."""
    eps: Annotated[list[Annotated[Eps, Field(gt=0)]], Field(min_length=1), BeforeValidator(_as_list)] = [0.1]
    """Largest perturbations, one or several; each is a cell of its own."""
    norm: Literal["linf", "l2"] = "linf"
    """The norm in which eps is measured."""
    limit: Count = 200
    """How many samples of the data it uses."""
    models: Names = None
    """The models it is run on, by their labels; all by default."""
    data: Names = None
    """The datasets it is run on, by their labels; all by default."""


class FigureSpec(BaseModel):
    """How the figures are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    published: bool = False
    """Draw published results beside ours: Hinton et al. (2018), Michels et al. (2019)."""


class ResourceSpec(BaseModel):
    """What a task takes of the nodes of a cluster; fractions let several tasks share a GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus_per_task: Annotated[float, Field(gt=0, le=MAX_PER_TASK, allow_inf_nan=False)] | None = None
    """CPUs of a task; by default one."""
    gpus_per_task: Annotated[float, Field(ge=0, le=MAX_PER_TASK, allow_inf_nan=False)] | None = None
    """GPUs of a task, where there are any; by default one, and a fraction lets tasks share it."""

    @field_validator("cpus_per_task", "gpus_per_task")
    @classmethod
    def _is_whole_above_one(cls, value: float | None) -> float | None:
        if value is not None and value > 1 and value != int(value):
            raise ValueError("must be a whole number above 1")
        return value


def parse_resources(**values: float | None) -> ResourceSpec:
    """Return validated resources that do not come from a suite file."""
    try:
        return ResourceSpec(**values)
    except ValidationError as error:
        raise UserError(first_problem(error)) from error


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Allowed names of suites: they name folders."""


class Suite(BaseModel):
    """A benchmark: every model x every dataset x every attack (x every seed, where it is random) or diagnostic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME)
    """Names the out folder; by default the name of the file."""
    title: str = ""
    """The heading of the report."""
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)] = [0]
    """Attacks that draw random numbers are run once per seed."""
    batch_size: Count = 64
    """Images per pass; results do not depend on it, except those of torchattacks and foolbox."""
    data: list[DataSpec] = Field(min_length=1)
    """The datasets."""
    models: list[ModelSpec] = Field(min_length=1)
    """The models; each is evaluated on every dataset unless it names its own."""
    attacks: list[AttackSpec] = []
    """The attacks; each is run on every model and dataset unless it names its own."""
    diagnostics: list[DiagnosticSpec] = []
    """The diagnostics; a suite needs at least an attack or a diagnostic."""
    figures: FigureSpec = FigureSpec()
    """How the figures are drawn."""
    resources: ResourceSpec = ResourceSpec()
    """CPUs and GPUs of each task on a Ray cluster."""

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if not self.attacks and not self.diagnostics:
            raise ValueError("a suite needs attacks or diagnostics")
        return self

    @field_validator("models")
    @classmethod
    def _expand_groups(cls, models: list[ModelSpec]) -> list[ModelSpec]:
        """Replace a model that is trained with several seeds by one model per seed."""
        return [member for model in models for member in model.members()]


SpecType = TypeVar("SpecType", bound=Spec)


def parse_spec(kind: type[SpecType], content: dict[str, Any]) -> SpecType:
    """Return a validated spec that does not come from a suite file."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(first_problem(error)) from error


class Collection(BaseModel):
    """Several suites that are run one after the other, each into its own folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME)
    """Names the out folder; by default the name of the file."""
    title: str = ""
    """The heading of the report."""
    suites: list[FilePath] = Field(min_length=1)
    """Their files, relative to the collection's own folder."""


MAX_BYTES = 10_000_000
"""The size of a suite file."""
ContentType = TypeVar("ContentType", Suite, Collection)


def load_suite(path: Path) -> Suite:
    """Read and validate a suite file; a mistake is named with the file and the place in it."""
    return _validated(Suite, _read(path), path)


def load_collection(path: Path) -> Collection:
    """Read a file that names suites (`suites = [...]`); a suite's own file is a collection of one."""
    content = _read(path)
    if "suites" not in content:
        suite = _validated(Suite, content, path)
        return Collection(name=suite.name, title=suite.title, suites=[path])
    found = _validated(Collection, content, path)
    files = [path.parent / file for file in found.suites]
    names = [load_suite(file).name for file in files]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: suites: two suites are called '{name}' and would share a folder.")
    return found.model_copy(update={"suites": files})


def is_collection(path: Path) -> bool:
    """Return whether a file lists suites instead of being one."""
    return "suites" in _read(path)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, with its name."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device may never end
            raise UserError(f"{path}: not a regular file; a suite is a TOML file.")
        if path.exists() and path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: too large for a suite file (more than {MAX_BYTES:,} bytes).")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such suite file.") from error
    except (OSError, ValueError) as error:  # also: not UTF-8, a NUL in the path
        raise UserError(f"{path}: cannot be read: {error}") from error
    try:
        content = parse_toml(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    return {"name": re.sub(r"[^A-Za-z0-9._-]", "-", path.stem), **content}


def _validated(kind: type[ContentType], content: dict[str, Any], path: Path) -> ContentType:
    """Return the content as a suite or a collection; an error names the file and the place in it."""
    for key in content:
        if key not in kind.model_fields:
            raise UserError(f"{path}: unknown key '{key}'. {did_you_mean(key, kind.model_fields)}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from error
