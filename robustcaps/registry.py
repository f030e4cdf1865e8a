"""One generic registry for models, datasets, attacks and diagnostics, filled by decorators and entry points."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from robustcaps.errors import UserError, describe_error, did_you_mean
from robustcaps.utils.code_digest import Root, reachable_files
from robustcaps.utils.printable import printable

if TYPE_CHECKING:
    from torch import nn

    from robustcaps.attacks.base import Attack
    from robustcaps.data.base import Data
    from robustcaps.diagnostics.checks.base import Diagnostic
    from robustcaps.diagnostics.kinds.base import DiagnosticKind

T = TypeVar("T")
Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered factory: keyword options in, a `T` out."""

    name: str
    factory: Callable[..., T]
    source: str
    """The module that registered it."""
    pretrained: bool = False
    """Of a model: whether the factory returns it with trained weights."""
    count_samples: Callable[..., int] | None = None
    """Of a dataset: (*, split, data_dir, **options) -> the number of its samples, without making them."""

    @property
    def built_in(self) -> bool:
        """Whether it came with this package, not with a plugin."""
        return self.source.partition(".")[0] == __name__.partition(".")[0]

    @property
    def help(self) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]


@dataclass(frozen=True)
class Provider:
    """The module that registers all names with one prefix, and the extra that brings the library it needs."""

    module: str
    extra: str


class Registry(Generic[T]):
    """Names to factories. The built-in ones are registered when a name is first looked up."""

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self.home = home
        self._entries: dict[str, Entry[T]] = {}
        self._excluded: dict[str, str] = {}
        self._providers: dict[str, Provider] = {}
        self._loaded = False

    def register(
        self, name: str, *, pretrained: bool = False, count_samples: Callable[..., int] | None = None
    ) -> Callable[[Factory], Factory]:
        """Return a decorator that registers a factory; a name taken by another source is an error."""

        def decorate(factory: Factory) -> Factory:
            self.add(name, factory, pretrained=pretrained, count_samples=count_samples)
            return factory

        return decorate

    def add(
        self,
        name: str,
        factory: Callable[..., T],
        *,
        source: str | None = None,
        pretrained: bool = False,
        count_samples: Callable[..., int] | None = None,
    ) -> None:
        """Register a factory; a name taken by another source is an error, the same source may renew its own.

        `source` is the module that it belongs to, by default the plugin file that registers it, else the module that
        defines the factory.
        """
        if printable(name) != name:
            raise UserError(f"{self.kind} '{printable(name)}': a name must not contain control characters.")
        home = inspect.getmodule(factory)
        owner = source or _plugin_at_work() or (home.__name__ if home else "unknown")
        entry = Entry(name, factory, owner, pretrained, count_samples)
        taken = self._entries.get(name)
        if taken is not None and taken.source != entry.source:
            raise UserError(f"{self.kind} '{name}' is registered already, by {taken.source}.")
        self._entries[name] = entry

    def provide(self, prefix: str, module: str, *, extra: str) -> None:
        """Leave the names 'prefix.*' to a module that is imported only when one of them is looked up or listed.

        The prefix is the name of the library that the module needs and that the extra installs.
        """
        self._providers[prefix] = Provider(module, extra)

    def exclude(self, name: str, reason: str) -> None:
        """Record why a name that users may expect is not available."""
        self._excluded[name] = reason

    def entry(self, name: str) -> Entry[T]:
        """Return the entry of that name; an unknown name is an error that lists the choices."""
        self._load()
        problem = self._problem(name.partition(".")[0])
        if problem:
            raise UserError(f"{self.kind} '{name}' {problem}")
        if name in self._excluded:
            raise UserError(f"{self.kind} '{name}' is left out: {self._excluded[name]}")
        if name not in self._entries:
            hint = did_you_mean(name, self._entries)
            raise UserError(f"unknown {self.kind} '{name}'. {hint} One of your own needs its plugin (--plugin FILE).")
        return self._entries[name]

    def names(self, pattern: str = "*") -> list[str]:
        """Return the registered names that match a wildcard pattern, sorted."""
        self._load()
        start = re.split(r"[*?[]", pattern)[0]
        for prefix in self._providers:
            if start.startswith(f"{prefix}.") or f"{prefix}.".startswith(start):
                self._problem(prefix)
        return sorted(fnmatch.filter(self._entries, pattern))

    def names_in_order(self) -> list[str]:
        """Return all registered names in the order of their registration."""
        self._load()
        return list(self._entries)

    def missing(self) -> list[str]:
        """Return what is not available without a library, and how to install it: one line each."""
        self._load()
        problems = {prefix: self._problem(prefix) for prefix in self._providers}
        return [f"{prefix}.* {problem}" for prefix, problem in problems.items() if problem]

    def _problem(self, prefix: str) -> str:
        """Import the provider of a prefix, if there is one; return why that fails, or ''."""
        provider = self._providers.get(prefix)
        if provider is None:
            return ""
        try:
            importlib.import_module(provider.module)
        except ImportError as error:
            if error.name == prefix:
                return f"needs {prefix}: pip install 'robustcaps[{provider.extra}]'."
            return f"needs {prefix}, which cannot be imported: {error}."
        return ""

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        importlib.import_module(self.home)
        for point in importlib.metadata.entry_points(group=f"robustcaps.{self.kind}s"):
            try:
                factory = point.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise anything
                raise UserError(
                    f"{self.kind} plugin '{point.name}' ({point.value}): {describe_error(error)}"
                ) from error
            if point.name not in self._entries:
                self.add(point.name, factory, source=point.module)


MODELS: Registry[nn.Module] = Registry("model", "robustcaps.models")
DATASETS: Registry[Data] = Registry("dataset", "robustcaps.data")
ATTACKS: Registry[Attack] = Registry("attack", "robustcaps.attacks.catalogue")
DIAGNOSTICS: Registry[Diagnostic] = Registry("diagnostic", "robustcaps.diagnostics.checks")
"""The checks that a verdict is made of."""
KINDS: Registry[DiagnosticKind] = Registry("diagnostic_kind", "robustcaps.diagnostics.kinds")
"""What suites may ask for under [[diagnostics]]."""


def model(name: str, *, pretrained: bool = False) -> Callable[[Factory], Factory]:
    """Return a decorator that registers a factory (*, classes, channels, size, **options) -> nn.Module as a model.

    Args:
        name: The name that suites and commands use.
        pretrained: The factory returns a network with trained weights. Without it, the network must be given weights
            or be trained before it is attacked.
    """
    return MODELS.register(name, pretrained=pretrained)


def dataset(name: str) -> Callable[[Factory], Factory]:
    """Return a decorator that registers a factory (*, split, limit, data_dir, progress, **options) -> Data."""
    return DATASETS.register(name)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the models, built in and from plugins, that match a wildcard pattern."""
    return MODELS.names(pattern)


def list_datasets(pattern: str = "*") -> list[str]:
    """Return the names of the datasets that match a wildcard pattern."""
    return DATASETS.names(pattern)


def list_attacks(pattern: str = "*") -> list[str]:
    """Return the names of the attacks that match a wildcard pattern."""
    return ATTACKS.names(pattern)


def list_diagnostics(pattern: str = "*") -> list[str]:
    """Return the names of the diagnostics that match a wildcard pattern."""
    return DIAGNOSTICS.names(pattern)


PLUGIN_PREFIX = "robustcaps_plugin_"
"""What the names of the modules of plugin files begin with."""
_helpers: dict[str, dict[str, bytes]] = {}
"""For each plugin: the modules that it imported from its folder, and the content of their files."""


def load_plugin(path: Path | str) -> None:
    """Import a plugin file, so that its decorators register its contents.

    If modules that it imports have changed since it was last loaded, they are imported again.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"plugin {path}: {'not a regular' if path.exists() else 'no such'} file.")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"{PLUGIN_PREFIX}{path.stem}_{place}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"plugin {path}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    _forget_changed_helpers(name)
    sys.modules[name] = module
    try:
        with _without_bytecode():
            spec.loader.exec_module(module)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a plugin may raise anything
        raise UserError(f"plugin {path}: {describe_error(error)}") from error
    _helpers[name] = _imported_modules(path.resolve())


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Write no .pyc files: Python takes an old one for a source that was edited within the same second."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _imported_modules(plugin: Path) -> dict[str, bytes]:
    """Return the loaded modules that a plugin imports and that are not installed, with the content of their files."""
    files = reachable_files([plugin], (Root(plugin.parent, is_plugin=True),)) - {plugin}
    loaded = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return {name: Path(file).read_bytes() for name, file in loaded if file and Path(file).resolve() in files}


def _forget_changed_helpers(plugin: str) -> None:
    """Forget all modules of a plugin's folder if one of them has changed."""
    helpers = _helpers.get(plugin, {})
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in helpers}
    present = {name: Path(file) for name, file in files.items() if file and Path(file).is_file()}
    if any(path.read_bytes() != helpers[name] for name, path in present.items()):
        importlib.invalidate_caches()
        for name in helpers:
            sys.modules.pop(name, None)


def _plugin_at_work() -> str | None:
    """Return the plugin file whose top level is being executed, if it is the innermost module that is."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name if name.startswith(PLUGIN_PREFIX) else None
