"""The resolver: it builds the models, datasets and attacks that specs name, each once per process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from robustcaps.attacks import load_attack
from robustcaps.attacks.base import Attack
from robustcaps.data import count_samples, load_data
from robustcaps.data.base import Data, Progress
from robustcaps.errors import UserError, describe_error
from robustcaps.models.base import Classifier
from robustcaps.models.precision import Precision
from robustcaps.models.zoo import build_model, load_model
from robustcaps.registry import DATASETS, MODELS, load_plugin
from robustcaps.suite.spec import AttackSpec, DataSpec, ModelSpec, Spec
from robustcaps.utils.devices import pick_device

T = TypeVar("T")


@dataclass(frozen=True)
class RuntimeConfig:
    """Where and how cells are executed; what changes rows (plugins, precision) is part of the cells' ids."""

    data_dir: Path | None = None
    device: str = "auto"
    plugins: tuple[Path, ...] = ()
    precision: Precision = field(default_factory=Precision)


@dataclass(frozen=True, eq=False)
class Resolver:
    """Builds what specs name and keeps it for the next cell."""

    config: RuntimeConfig = RuntimeConfig()
    cache: dict[tuple[str, ...], Any] = field(default_factory=dict)

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
                skip=spec.skip,
                data_dir=self.config.data_dir,
                progress=progress,
                **spec.options,
            )

        return self._once(Data, ("dataset", spec.use, spec.model_dump_json(exclude={"name"})), make)

    def count_samples(self, spec: DataSpec) -> int:
        """Return the size of a dataset; it is made only if nothing else can tell."""
        if spec.limit is not None:
            return spec.limit
        known = count_samples(spec.use, split=spec.split, data_dir=self.config.data_dir, **spec.options)
        return len(self.data(spec)) if known is None else max(0, known - spec.skip)

    def model(self, spec: ModelSpec, data: DataSpec) -> nn.Module:
        """Return the model of a spec for a dataset: from the zoo with trained weights, or as a plugin builds it.

        A model that the suite has yet to train is built with random weights, which is enough to check the suite.
        """
        _refuse(spec, "model", ("device", "seed", "classes", "channels", "size"))
        device, precision = pick_device(self.config.device), self.config.precision
        precision.check(device)
        DATASETS.entry(data.use)
        _check_trained(spec)

        def build() -> nn.Module:
            if has_card(spec):
                return load_model(spec.use, data=data.use, weights=spec.weights, device=str(device), **spec.options)
            loaded = self.data(data)
            sizes = {"classes": loaded.classes, "channels": loaded.channels, "size": loaded.size}
            return build_model(_base(spec), **sizes, **spec.options).to(device).eval()

        def make() -> nn.Module:
            model = build()
            if isinstance(model, nn.Module):
                precision.apply(model, name=spec.use)
                precision.warm_up(model, self._two_images(model, data).to(device), name=spec.use)
            return model

        kind: type[nn.Module] = nn.Module
        return self._once(
            kind, ("model", spec.use, spec.model_dump_json(exclude={"name"}), data.model_dump_json()), make
        )

    def _two_images(self, model: nn.Module, data: DataSpec) -> Tensor:
        """Return images for a first pass; a zoo model knows their shape without any data."""
        if isinstance(model, Classifier):
            return torch.zeros(2, model.channels, model.size, model.size)
        return self.data(data).images[:2]

    def attack(self, spec: AttackSpec) -> Attack:
        """Return the attack of a spec, with its budgets and its goal."""

        def make() -> Attack:
            fields = spec.model_dump(include={"eps", "norm", "unit", "goal", "target", "max_queries"})
            return load_attack(spec.use, name=spec.label, **fields, **spec.options)

        kind: type[Attack] = Attack  # type: ignore[type-abstract]
        return self._once(kind, ("attack", spec.use, spec.model_dump_json()), make)

    def _once(self, kind: type[T], key: tuple[str, ...], make: Callable[[], T]) -> T:
        """Build on the first call; an error names what cannot be built, or what a factory wrongly returns."""
        if key not in self.cache:
            try:
                built = make()
            except (UserError, KeyboardInterrupt):
                raise
            except BaseException as error:  # a plugin may raise anything
                raise UserError(f"{key[0]} '{key[1]}' cannot be built: {describe_error(error)}") from error
            if not isinstance(built, kind):
                raise UserError(f"{key[0]} '{key[1]}' is a {type(built).__name__}, not a {kind.__name__}.")
            self.cache[key] = built
        cached: T = self.cache[key]
        return cached


def has_card(spec: ModelSpec) -> bool:
    """Return whether the weights come from a file with a model card."""
    if spec.weights is not None:
        return True
    return MODELS.entry(_base(spec)).built_in and spec.train is None and not spec.untrained


def _check_trained(spec: ModelSpec) -> None:
    """Refuse a model whose weights nobody has trained, unless the spec allows it."""
    entry = MODELS.entry(_base(spec))
    if has_card(spec) or spec.train is not None or spec.untrained or entry.pretrained:
        return
    raise UserError(
        f"model '{spec.use}' has no trained weights. Give it weights = FILE or train = {{...}}, declare that the "
        f"plugin brings them with @rc.model('{entry.name}', pretrained=True), or set untrained = true (--untrained)."
    )


def _base(spec: ModelSpec) -> str:
    """Return the name of a model without its tag."""
    return spec.use.partition(":")[0]


def _refuse(spec: Spec, kind: str, names: tuple[str, ...]) -> None:
    """Refuse options that the harness sets itself."""
    for name in names:
        if name in spec.options:
            raise UserError(f"{kind} '{spec.use}': '{name}' is not an option: the harness sets it.")
