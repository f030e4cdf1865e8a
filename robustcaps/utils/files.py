"""Atomic writing of files: a killed process never leaves a partial file under its final name."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a temporary file in the same folder and rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)  # noqa: PTH105 (documented to be atomic)
    finally:
        temporary.unlink(missing_ok=True)
