"""Files that are whole or not there: a killed process never leaves half a file under its real name."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file beside its place and move it there in one step."""
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(unfinished, path)  # noqa: PTH105 (the call whose atomicity this relies on)
    finally:
        unfinished.unlink(missing_ok=True)
