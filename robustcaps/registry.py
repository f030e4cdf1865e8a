"""One generic registry for models, datasets and attacks: by decorator, by entry point, with 'did you mean'."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from robustcaps.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from robustcaps.attacks.base import Attack
    from robustcaps.data.base import Data

T = TypeVar("T")
Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered factory: keyword options in, a `T` out."""

    name: str
    factory: Callable[..., T]
    source: str

    @property
    def built_in(self) -> bool:
        """Whether it came with this package, not with a plugin."""
        return self.source.partition(".")[0] == __name__.partition(".")[0]

    @property
    def help(self) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]


class Registry(Generic[T]):
    """Names to factories. The built-in ones register when their home package is first asked for."""

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self.home = home
        self._entries: dict[str, Entry[T]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """Return a decorator that registers a factory; a name taken by another source is an error."""

        def decorate(factory: Factory) -> Factory:
            self.add(name, factory)
            return factory

        return decorate

    def add(self, name: str, factory: Callable[..., T]) -> None:
        """Register a factory; a name taken by another source is an error, the same source may renew its own."""
        source = inspect.getmodule(factory)
        entry = Entry(name, factory, source.__name__ if source else "unknown")
        taken = self._entries.get(name)
        if taken is not None and taken.source != entry.source:
            raise UserError(f"{self.kind} '{name}' is registered already, by {taken.source}.")
        self._entries[name] = entry

    def entry(self, name: str) -> Entry[T]:
        """Return the entry of that name, or say which names there are."""
        self._load()
        if name not in self._entries:
            raise UserError(f"unknown {self.kind} '{name}'. {did_you_mean(name, self._entries)}")
        return self._entries[name]

    def names(self, pattern: str = "*") -> list[str]:
        """Return the registered names that match a wildcard pattern, sorted."""
        self._load()
        return sorted(fnmatch.filter(self._entries, pattern))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        importlib.import_module(self.home)
        for point in importlib.metadata.entry_points(group=self.home):
            try:
                factory = point.load()
            except Exception as error:
                raise UserError(f"{self.kind} plugin '{point.name}' ({point.value}): {error}") from error
            if point.name not in self._entries:
                self.add(point.name, factory)


MODELS: Registry[nn.Module] = Registry("model", "robustcaps.models")
DATASETS: Registry[Data] = Registry("dataset", "robustcaps.data")
ATTACKS: Registry[Attack] = Registry("attack", "robustcaps.attacks")


def load_plugin(path: Path) -> None:
    """Import a plugin file, so that its decorators register what it brings."""
    if not path.is_file():
        raise UserError(f"plugin {path}: no such file.")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"robustcaps_plugin_{path.stem}_{place}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {path}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"plugin {path}: {type(error).__name__}: {error}") from error
