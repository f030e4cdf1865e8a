"""Specs made into things: a suite's words turned into models, data and attacks, each made once per process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.base import Attack
from robustcaps.data import load_data
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError
from robustcaps.models.base import Classifier
from robustcaps.models.precision import Precision
from robustcaps.models.zoo import build_model, load_model
from robustcaps.registry import DATASETS, MODELS, load_plugin
from robustcaps.suite.spec import AttackSpec, DataSpec, ModelSpec, Spec
from robustcaps.utils.devices import pick_device

T = TypeVar("T")


@dataclass(frozen=True)
class RuntimeConfig:
    """Where and how work is done. What in it changes rows is in the cells' ids: the plugins' code, and `execution`."""

    data_dir: Path | None = None
    device: str = "auto"
    plugins: tuple[Path, ...] = ()
    precision: Precision = field(default_factory=Precision)


@dataclass(frozen=True, eq=False)
class Resolver:
    """Makes the things that specs describe, and keeps them for the next cell that asks."""

    config: RuntimeConfig = RuntimeConfig()
    made: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for plugin in self.config.plugins:
            load_plugin(plugin)

    def data(self, spec: DataSpec, progress: Progress | None = None) -> Data:
        """Return the dataset of a spec."""
        _refuse(spec, "dataset", ("data_dir", "progress"))

        def make() -> Data:
            return load_data(
                spec.use,
                split=spec.split,
                limit=spec.limit,
                data_dir=self.config.data_dir,
                progress=progress,
                **spec.options,
            )

        return self._once(Data, ("dataset", spec.use, spec.model_dump_json(exclude={"name"})), make)

    def model(self, spec: ModelSpec, data: DataSpec) -> nn.Module:
        """Return the model of a spec for a dataset: the zoo's with trained weights, or a plugin's as it builds it.

        One that a suite is still to train is built with fresh weights: enough to check the suite.
        """
        _refuse(spec, "model", ("device", "seed", "classes", "channels", "size"))
        device, precision = pick_device(self.config.device), self.config.precision
        precision.check(device)
        DATASETS.entry(data.use)

        def build() -> nn.Module:
            if has_card(spec):
                return load_model(spec.use, data=data.use, weights=spec.weights, device=str(device), **spec.options)
            loaded = self.data(data)
            sizes = {"classes": loaded.classes, "channels": loaded.channels, "size": loaded.size}
            return build_model(_base(spec), **sizes, **spec.options).to(device).eval()

        def make() -> nn.Module:
            model = build()
            if isinstance(model, nn.Module):
                precision.prepare(model, name=spec.use)
                precision.try_out(model, self._two_images(model, data).to(device), name=spec.use)
            return model

        kind: type[nn.Module] = nn.Module
        return self._once(
            kind, ("model", spec.use, spec.model_dump_json(exclude={"name"}), data.model_dump_json()), make
        )

    def _two_images(self, model: nn.Module, data: DataSpec) -> Tensor:
        """Return images to try a model with; a zoo model says itself what it takes, without any data."""
        if isinstance(model, Classifier):
            return torch.zeros(2, model.channels, model.size, model.size)
        return self.data(data).images[:2]

    def attack(self, spec: AttackSpec) -> Attack:
        """Return the attack of a spec, with its budgets and its aim."""

        def make() -> Attack:
            fields = spec.model_dump(include={"eps", "norm", "unit", "goal", "target", "max_queries"})
            return load_attack(spec.use, name=spec.label, **fields, **spec.options)

        kind: type[Attack] = Attack  # type: ignore[type-abstract]
        return self._once(kind, ("attack", spec.use, spec.model_dump_json()), make)

    def _once(self, kind: type[T], key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Make a thing at the first call; whatever a plugin's factory raises or returns wrongly is named."""
        if key not in self.made:
            try:
                made = make()
            except UserError:
                raise
            except (Exception, SystemExit) as error:
                raise UserError(f"{key[0]} '{key[1]}' cannot be made: {type(error).__name__}: {error}") from error
            if not isinstance(made, kind):
                raise UserError(f"{key[0]} '{key[1]}' is a {type(made).__name__}, not a {kind.__name__}.")
            self.made[key] = made
        thing: T = self.made[key]
        return thing


def has_card(spec: ModelSpec) -> bool:
    """Return whether the weights come from a file with a card, not from a plugin that makes its own."""
    to_train = spec.train is not None and spec.weights is None
    return spec.weights is not None or (MODELS.entry(_base(spec)).built_in and not to_train)


def _base(spec: ModelSpec) -> str:
    """Return the name of a model without its tag."""
    return spec.use.partition(":")[0]


def _refuse(spec: Spec, kind: str, names: tuple[str, ...]) -> None:
    """Refuse options that the harness sets itself."""
    for name in names:
        if name in spec.options:
            raise UserError(f"{kind} '{spec.use}': '{name}' is no option; the harness sets it.")
