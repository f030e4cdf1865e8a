"""The id of a cell: a hash of everything that decides its rows, the code included."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from robustcaps.registry import Entry, Registry
from robustcaps.utils.code_digest import Root, code_digest, own_root

Named = tuple[Registry[Any], str]
"""A registry and a name in it."""


def settings_id(settings: dict[str, Any]) -> str:
    """Return a hash of settings: the name under which a finished cell is stored."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def package_code(modules: Iterable[str], named: Iterable[Named] = ()) -> str:
    """Return a digest of our own code that rows depend on: modules, those of registered things, and their imports."""
    entries = [entry_of(*each) for each in named]
    names = {*modules, *(entry.source for entry in entries if entry.built_in)}
    files = [own_root().module_file(name) for name in names]
    return code_digest(file for file in files if file is not None)


def external_code(registry: Registry[Any], name: str) -> dict[str, str]:
    """Return what identifies the code of a plugin or of another library; nothing for our own.

    A plugin is identified by a digest of its file and of what it imports from its own folder or package, and, where it
    is installed, by its version.
    """
    entry = entry_of(registry, name)
    if entry.built_in:
        library, dot, _ = name.partition(".")
        return {"library": importlib.metadata.version(library)} if dot else {}
    file = getattr(sys.modules.get(entry.source), "__file__", None)
    if file is None:
        return {"code": hashlib.sha256(_source_text(entry.factory).encode()).hexdigest()}
    package, version = entry.source.partition(".")[0], _version(entry.source.partition(".")[0])
    folder = Path(file).parents[entry.source.count(".") + (Path(file).name == "__init__.py")]
    is_package = bool(version) or "." in entry.source
    root = Root(folder, package if is_package else None)
    starts = [Path(file), *([top] if is_package and (top := root.module_file(package)) else [])]
    return {"code": code_digest(starts, roots=[root]), **version}


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


def _version(package: str) -> dict[str, str]:
    """Return the version of an installed package; nothing for a file."""
    distributions = importlib.metadata.packages_distributions().get(package, [])
    return {"version": importlib.metadata.version(distributions[0])} if distributions else {}
