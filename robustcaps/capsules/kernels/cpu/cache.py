"""The directory in which compiled kernels are cached, named after the sources that they were compiled from.

Numba only watches the file of the cached function. Kernels inline functions and constants from other modules as well,
so the name covers all of them: an edited kernel never runs from an outdated cache.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba

NUMBA_CONFIG: Any = numba.config
"""Numba's settings, which its type hints do not list."""
PREFIX = "robustcaps-kernels-"
MAX_UNUSED_SECONDS = 7 * 24 * 3600
"""Caches of other sources are removed once they have not been used for a week."""


@functools.cache
def kernel_cache_directory() -> Path | None:
    """Return a writable directory for kernels compiled from the current sources, or None if there is none."""
    sources = kernel_sources()
    if not sources:  # e.g. imported from a zip file
        return None
    name = PREFIX + source_digest(sources)[:20]
    for parent in _parent_directories():
        directory = parent / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
            os.utime(directory)
        except OSError:
            continue
        _remove_unused(parent, keep=directory)
        return directory
    return None


def kernel_sources() -> list[Path]:
    """Return the modules whose functions or constants may be compiled into a kernel."""
    capsules = Path(__file__).parents[2]
    folders = (capsules / "kernels" / "cpu", capsules / "routing")
    return [path for folder in folders for path in sorted(folder.glob("*.py"))]


def source_digest(sources: list[Path]) -> str:
    """Return the SHA-256 of sources and of LLVM's version, which Numba's own cache key lacks."""
    digest = hashlib.sha256(llvmlite.__version__.encode())
    for path in sources:
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _parent_directories() -> Iterator[Path]:
    """Yield where Numba itself would look: NUMBA_CACHE_DIR, beside the sources, then in the user's cache."""
    if NUMBA_CONFIG.CACHE_DIR:
        yield Path(NUMBA_CONFIG.CACHE_DIR)
    yield Path(__file__).parent / "__pycache__"
    if root := os.environ.get("XDG_CACHE_HOME"):
        yield Path(root) / "robustcaps"
        return
    try:
        yield Path.home() / ".cache" / "robustcaps"
    except RuntimeError:  # a user without a home directory
        return


def _remove_unused(parent: Path, *, keep: Path) -> None:
    """Remove caches of other sources that are long unused; processes that are still running may need newer ones."""
    oldest = time.time() - MAX_UNUSED_SECONDS
    for directory in parent.glob(f"{PREFIX}*"):
        try:
            unused = directory != keep and directory.stat().st_mtime < oldest
        except OSError:  # another process has removed it
            continue
        if unused:
            shutil.rmtree(directory, ignore_errors=True)
