"""Compiled kernels are cached on disk, and recompiled when any source that they inline changes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

import robustcaps
from robustcaps.capsules.kernels.cpu import cache

PACKAGE = Path(robustcaps.__file__).parent
KERNEL = """
from robustcaps.capsules.kernels.cpu.helper import add
from robustcaps.capsules.kernels.cpu.jit import compiled

@compiled
def kernel(x: int) -> int:
    return add(x)
"""
HELPER = """
from robustcaps.capsules.kernels.cpu.jit import inlined

@inlined
def add(x: int) -> int:
    return x + {}
"""
CALL = """
from robustcaps.capsules.kernels.cpu.probe import kernel
print(kernel(1), sum(kernel.stats.cache_hits.values()), kernel.stats.cache_path)
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A copy of the package's kernels, with a kernel of our own that inlines a helper of another module."""
    root = tmp_path / "copy" / "robustcaps"
    shutil.copytree(PACKAGE / "capsules", root / "capsules", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py"):
        shutil.copy(PACKAGE / name, root / name)
    (root / "capsules/kernels/cpu/probe.py").write_text(KERNEL)
    (root / "capsules/kernels/cpu/helper.py").write_text(HELPER.format(1))
    return root / "capsules/kernels/cpu"


def call(kernels: Path, **variables: str) -> tuple[int, int, Path]:
    """Return what the kernel computes in a new process, how often it came from the cache, and from where."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CACHE")}
    environment = {**outer, "PYTHONPATH": str(kernels.parents[3]), **variables}
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALL], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result, hits, path = done.stdout.split(maxsplit=2)
    return int(result), int(hits), Path(path.strip())


def test_an_edited_helper_is_never_run_from_an_outdated_cache(kernels):
    assert call(kernels)[:2] == (2, 0)
    result, hits, path = call(kernels)
    assert (result, hits) == (2, 1) and path.is_relative_to(kernels / "__pycache__")
    (kernels / "helper.py").write_text(HELPER.format(5))
    assert call(kernels)[:2] == (6, 0)
    assert call(kernels)[:2] == (6, 1)


def test_the_cache_follows_numbas_setting(kernels, tmp_path):
    _, _, path = call(kernels, NUMBA_CACHE_DIR=str(tmp_path / "elsewhere"))
    assert path.is_relative_to(tmp_path / "elsewhere")


def test_only_old_caches_of_other_sources_are_removed(kernels, tmp_path):
    for name, age in {"old": 2 * cache.MAX_UNUSED_SECONDS, "recent": 60}.items():
        directory = tmp_path / "caches" / f"{cache.PREFIX}{name}"
        directory.mkdir(parents=True)
        changed = directory.stat().st_mtime - age
        os.utime(directory, (changed, changed))
    _, _, path = call(kernels, NUMBA_CACHE_DIR=str(tmp_path / "caches"))
    left = {directory.name for directory in (tmp_path / "caches").iterdir()}
    assert left == {f"{cache.PREFIX}recent", path.parent.name}


def imported_modules(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


@pytest.mark.parametrize("name", ["forward", "backward", "contraction", "votes", "lanes"])
def test_the_digest_covers_all_that_kernels_import(name):
    covered = {path.resolve() for path in cache.kernel_sources()}
    for module in imported_modules(PACKAGE / f"capsules/kernels/cpu/{name}.py"):
        if module.startswith("robustcaps"):
            path = PACKAGE.parent / f"{module.replace('.', '/')}.py"
            assert path.resolve() in covered, f"{name} imports {module}"
