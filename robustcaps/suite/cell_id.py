"""What decides rows, as it goes into the ids of cells: the code of plugins, and a hash of everything."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
from typing import Any

from robustcaps.registry import Registry


def settings_id(settings: dict[str, Any]) -> str:
    """Return a hash of settings: the name that finished work is kept under."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def plugin_code(registry: Registry[Any], name: str) -> dict[str, str]:
    """Return what tells the code of a plugin or a library from its next version; nothing for our own."""
    entry = registry.entry(name.partition(":")[0])
    if entry.built_in:
        library, dot, _ = name.partition(".")
        return {"library": importlib.metadata.version(library)} if dot else {}
    try:
        code = inspect.getsource(inspect.getmodule(entry.factory) or entry.factory)
    except (OSError, TypeError):
        code = repr(entry.source)
    return {"code": hashlib.sha256(code.encode()).hexdigest()}
