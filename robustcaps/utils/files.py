"""Files: atomic writing, so that a killed process leaves no partial file, and JSON that may be damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
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
