"""Files: atomic writing, so that a killed process leaves no partial file, and JSON that may be damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from robustcaps.errors import UserError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a temporary file in the same folder and rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)  # noqa: PTH105 (documented to be atomic)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> list[Path]:
    """Create a folder and those above it; return the new ones, outermost first. On failure, none is left behind."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError):
        remove_empty(missing)
        raise
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those folders, innermost last in the list, that have nothing in them."""
    for folder in reversed(list(folders)):
        with contextlib.suppress(OSError, ValueError):
            folder.rmdir()


def json_checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a JSON object says, whatever its formatting, without its key 'checksum'."""
    text = json.dumps({key: value for key, value in content.items() if key != "checksum"}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise `UserError` if it is damaged, `FileNotFoundError` if there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except RecursionError as error:
        raise UserError(f"{path}: cannot be read: nested too deeply.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
