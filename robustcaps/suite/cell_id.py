"""The id of a cell: a hash of everything that decides its rows, the code included."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from robustcaps.registry import Entry, Registry
from robustcaps.utils.code_digest import (
    Root,
    code_digest,
    imported_packages,
    is_installed,
    own_root,
    reachable_files,
)

Named = tuple[Registry[Any], str]
"""A registry and a name in it."""


def settings_id(settings: dict[str, Any]) -> str:
    """Return a hash of settings: the name under which a finished cell is stored."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def package_code(modules: Iterable[str], named: Iterable[Named] = ()) -> str:
    """Return a digest of our own code that rows depend on: modules, those of registered things, and their imports."""
    entries = [entry_of(*each) for each in named]
    return _own_code(frozenset({*modules, *(entry.source for entry in entries if entry.built_in)}))


@functools.cache
def _own_code(modules: frozenset[str]) -> str:
    """Return a digest of modules of this package, which do not change while it runs; thousands of cells share them."""
    files = [own_root().module_file(name) for name in modules]
    return code_digest(file for file in files if file is not None)


def external_code(registry: Registry[Any], name: str) -> dict[str, str]:
    """Return what identifies the code of a plugin or of another library; nothing for our own.

    A plugin is identified by a digest of its file and of everything it imports that is not installed, by the versions
    of the other packages it imports, and, where it is installed itself, by its version.
    """
    entry = entry_of(registry, name)
    if entry.built_in:
        library, dot, _ = name.partition(".")
        return {"library": importlib.metadata.version(library)} if dot else {}
    file = getattr(sys.modules.get(entry.source), "__file__", None)
    if file is None:
        return {"code": hashlib.sha256(_source_text(entry.factory).encode()).hexdigest()}
    package = entry.source.partition(".")[0]
    folder = Path(file).parents[entry.source.count(".") + (Path(file).name == "__init__.py")]
    root = Root(folder, package) if is_installed(Path(file)) else Root(folder, is_plugin=True)
    top = root.module_file(package) if "." in entry.source else None
    starts = [Path(file), *([top] if top else [])]
    version = {"version": text} if (text := _versions([package])) else {}
    others = _versions(sorted(imported_packages(reachable_files(starts, (root,))) - {package}))
    return {"code": code_digest(starts, roots=[root]), **version, **({"imports": others} if others else {})}


def entry_of(registry: Registry[Any], name: str) -> Entry[Any]:
    """Return the entry of a registered thing; a model's tag (cnn:b) is no part of its name."""
    return registry.entry(name.partition(":")[0])


def _source_text(factory: Any) -> str:
    """Return the source, else the bytecode, of something that was registered without a file, as in a notebook."""
    try:
        return inspect.getsource(factory)
    except (OSError, TypeError):
        members = vars(factory).values() if inspect.isclass(factory) else [factory]
        codes = [getattr(inspect.unwrap(each), "__code__", None) for each in members if callable(each)]
        return repr([(code.co_code, code.co_names, repr(code.co_consts)) for code in codes if code is not None])


def _versions(packages: Iterable[str]) -> str:
    """Return the names and versions of installed packages, without those that every cell needs and plain files."""
    names = {name for package in packages for name in _distributions().get(package, ())}
    found = sorted(name for name in names if _normalised(name) not in _needed())
    return " ".join(f"{name}={importlib.metadata.version(name)}" for name in found)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by the packages that they bring."""
    return importlib.metadata.packages_distributions()


@functools.cache
def _needed() -> frozenset[str]:
    """Return this package and those that it cannot do without: run.json has their versions."""
    required = [text for text in importlib.metadata.requires("robustcaps") or () if "extra ==" not in text]
    return frozenset({"robustcaps", *(_normalised(re.split(r"[^\w.-]", text)[0]) for text in required)})


def _normalised(name: str) -> str:
    """Return the name of a distribution as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()
