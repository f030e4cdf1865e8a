"""What a user writes: a TOML file that names models, data, attacks; validated with the place of every mistake."""

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
    ValidationInfo,
    model_validator,
)

from robustcaps.errors import UserError, did_you_mean
from robustcaps.options import first_problem


def _finite_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("must be a finite number")
    if value < 0:
        raise ValueError("must not be negative")
    return value


def _as_list(value: object) -> object:
    return value if value is None or isinstance(value, list) else [value]


def _beside_eps(steps: int | None, info: ValidationInfo) -> int | None:
    if (steps is None) != (info.data.get("adversary_eps") is None):
        raise ValueError("goes with adversary_eps: give both, or neither for ordinary training")
    return steps


def _instead_of_holdout(samples: int | None, info: ValidationInfo) -> int | None:
    if samples is not None and info.data.get("holdout"):
        raise ValueError("takes the place of held-out train samples: it goes with holdout 0")
    return samples


def _on_what_is_held_out(stop_error: float | None, info: ValidationInfo) -> float | None:
    if stop_error is not None and info.data.get("holdout") == 0 and info.data.get("holdout_test") is None:
        raise ValueError("is measured on held-out samples: hold some out (holdout or holdout_test)")
    return stop_error


LARGEST_SEED = 2**31 - 1
Eps = Annotated[float, BeforeValidator(_finite_number)]
Sweep = Annotated[list[Eps], Field(min_length=1)]
AdversaryEps = Annotated[float, Field(gt=0, le=1)]
"""How far (linf, pixels of [0,1]) the images that a network is trained on may be from those of the data."""
AdversarySteps = Annotated[
    Annotated[int, Field(ge=1)] | None, AfterValidator(_beside_eps), Field(validate_default=True)
]
"""In how many gradient steps they are found; a field that comes after `adversary_eps`."""


class Spec(BaseModel):
    """A thing named by `use`; keys that are not fields are options of that thing, checked by its own signature."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str = Field(min_length=1)
    name: str | None = None

    @property
    def label(self) -> str:
        """What tables and figures call it."""
        return self.name or self.use

    @property
    def options(self) -> dict[str, Any]:
        """The options beyond the fields every thing of its kind has."""
        return dict(self.model_extra or {})


Names = Annotated[list[str], Field(min_length=1)] | None
"""Which things of a suite another one is for, by the names that tables give them."""


def meant_for(names: Names, spec: Spec) -> bool:
    """Return whether a thing is among those named; all are where none is."""
    return names is None or spec.label in names


Views = Literal["all", "familiar-azimuths", "novel-azimuths", "familiar-elevations", "novel-elevations"]
"""Which viewpoints of a dataset to take, where it knows them."""
HoldoutTest = Annotated[Annotated[int, Field(ge=1)] | None, AfterValidator(_instead_of_holdout)]
"""So many samples, the last of the test split, are held out for validation; a field that comes after `holdout`."""
StopError = Annotated[Annotated[float, Field(ge=0, lt=1)] | None, AfterValidator(_on_what_is_held_out)]
"""The share of held-out samples got wrong at which a training stops; a field that comes after both."""


class TrainSpec(BaseModel):
    """How a suite trains a model of its own; what is not said comes from the model's recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    epochs: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    lr: Annotated[float, Field(gt=0)] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    holdout: Annotated[int, Field(ge=0)] = 0
    adversary_eps: AdversaryEps | None = None
    adversary_steps: AdversarySteps = None
    views: Views | None = None
    """The viewpoints to train on; without, those that the data of the suite are of."""
    holdout_test: HoldoutTest = None
    stop_error: StopError = None


class ModelSpec(Spec):
    """A model: a zoo name (with a tag: 'cnn:b'), or a plugin's.

    Its trained weights are the shipped ones, or those of a file, or the suite trains them.
    """

    weights: Path | None = None
    train: TrainSpec | None = None
    data: Names = None
    """The datasets it is for, by the names that tables give them; all by default."""


class DataSpec(Spec):
    """A dataset, its split, and how many samples to take."""

    split: Literal["train", "test"] = "test"
    limit: Annotated[int, Field(ge=1)] | None = None


class AttackSpec(Spec):
    """An attack, its budgets and its aim."""

    @property
    def label(self) -> str:
        """What tables and figures call it; one that crafts on another model is called after that, too."""
        surrogate = self.options.get("surrogate", "")
        models = "+".join(map(str, surrogate)) if isinstance(surrogate, list) else str(surrogate)
        return self.name or f"{self.use} {models}".strip()

    eps: Annotated[Sweep | None, BeforeValidator(_as_list)] = None
    norm: Literal["linf", "l2"] = "linf"
    unit: Literal["pixel", "std"] = "pixel"
    goal: Literal["untargeted", "targeted"] = "untargeted"
    target: int | str | None = None
    models: Names = None
    """The models it is for, by the names that tables give them; all by default."""
    data: Names = None
    """The datasets it is for, likewise."""
    max_queries: Annotated[int, Field(ge=1)] | None = None
    """How often it may ask the attacked model about a sample, for each eps."""
    time_limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How many seconds a cell may take; by default an hour for a plugin's attack, and any time for a built-in one."""


class DiagnosticSpec(Spec):
    """A question about the models: 'verdict' (all checks), 'gradients' (by loss), 'views' (novel ones), or a check."""

    use: str = Field(default="verdict", min_length=1)
    eps: Annotated[list[Annotated[Eps, Field(gt=0)]], Field(min_length=1), BeforeValidator(_as_list)] = [0.1]
    norm: Literal["linf", "l2"] = "linf"
    limit: Annotated[int, Field(ge=1)] = 200
    """How many samples of the data it looks at."""
    models: Names = None
    """The models it is for, by the names that tables give them; all by default."""
    data: Names = None
    """The datasets it is for, likewise."""


class FigureSpec(BaseModel):
    """How the figures are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    published: bool = False
    """Draw what papers printed beside ours: curves of Hinton et al. (2018), mean sizes of Michels et al. (2019)."""


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What suites may be called: it is the name of a folder."""


class Suite(BaseModel):
    """A benchmark: every model x every dataset x every attack (x every seed, where it is random) or diagnostic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME)
    title: str = ""
    seeds: list[Annotated[int, Field(ge=0, le=LARGEST_SEED)]] = Field(default=[0], min_length=1)
    batch_size: Annotated[int, Field(ge=1)] = 64
    data: list[DataSpec] = Field(min_length=1)
    models: list[ModelSpec] = Field(min_length=1)
    attacks: list[AttackSpec] = []
    diagnostics: list[DiagnosticSpec] = []
    figures: FigureSpec = FigureSpec()

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not self.attacks and not self.diagnostics:
            raise ValueError("a suite needs attacks or diagnostics")
        return self


SpecType = TypeVar("SpecType", bound=Spec)


def parse_spec(kind: type[SpecType], content: dict[str, Any]) -> SpecType:
    """Return a spec that was not written in a suite, validated like one."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(first_problem(error)) from error


class Collection(BaseModel):
    """Several suites that are run one after the other, each into a folder of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME)
    title: str = ""
    suites: list[Path] = Field(min_length=1)
    """Their files, seen from the collection's own folder."""


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
            raise UserError(f"{path}: suites: two of them are called '{name}', and would share a folder.")
    return found.model_copy(update={"suites": files})


def is_collection(path: Path) -> bool:
    """Tell whether a file names suites instead of being one."""
    return "suites" in _read(path)


def _read(path: Path) -> dict[str, Any]:
    """Return what a TOML file says, with its name."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such suite file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    return {"name": re.sub(r"[^A-Za-z0-9._-]", "-", path.stem), **content}


def _validated(kind: type[ContentType], content: dict[str, Any], path: Path) -> ContentType:
    """Return the content as a suite or a collection, or say what is wrong in which file."""
    for key in content:
        if key not in kind.model_fields:
            raise UserError(f"{path}: unknown key '{key}'. {did_you_mean(key, kind.model_fields)}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {first_problem(error)}") from error
