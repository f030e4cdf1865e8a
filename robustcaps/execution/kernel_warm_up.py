"""Compile the fused kernels in a process of their own while cells are executed that do not need them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from robustcaps.capsules.layers import MatrixCapsules
from robustcaps.models.inference import device_of
from robustcaps.suite.resolve import Resolver
from robustcaps.suite.shard import Shard

MODULE = "robustcaps.capsules.kernels.cpu.warm_up"


@contextmanager
def kernels_compiled_meanwhile(shards: Sequence[Shard], resolver: Resolver) -> Iterator[Iterable[Shard]]:
    """Yield the shards in the order in which to execute them; those that need the kernels come after the others.

    If nothing is compiled yet, a process compiles the kernels into their cache until the first shard that needs them.
    """
    parts: dict[bool, list[Shard]] = {False: [], True: []}
    if _is_cold():
        for shard in shards:
            parts[_routes_by_kernel(resolver.model(shard.cell.model, shard.cell.data))].append(shard)
    first, last = parts[False], parts[True]
    if not first or not last:
        yield shards
        return
    process = _start()
    try:
        yield _in_order(first, last, process)
    finally:
        if process.returncode is None:  # the run was interrupted, or had enough
            process.kill()
            process.communicate()


def _in_order(first: Sequence[Shard], last: Sequence[Shard], process: subprocess.Popen[str]) -> Iterator[Shard]:
    """Yield the shards; wait for the process between the two parts, and warn if it failed."""
    yield from first
    _, errors = process.communicate()
    if process.returncode:
        reason = errors.strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        warnings.warn(f"the kernels could not be compiled in the background: {reason}", RuntimeWarning, stacklevel=2)
    yield from last


def _routes_by_kernel(model: nn.Module) -> bool:
    """Return whether a model routes by EM on the CPU."""
    return device_of(model).type == "cpu" and any(isinstance(module, MatrixCapsules) for module in model.modules())


def _is_cold() -> bool:
    """Return whether there is a cache of kernels, and nothing in it for the current sources."""
    if importlib.util.find_spec("numba") is None:
        return False
    from robustcaps.capsules.kernels.cpu.cache import kernel_cache_directory  # noqa: PLC0415  needs numba

    directory = kernel_cache_directory()
    return directory is not None and not any(directory.rglob("*.nbi"))


def _start() -> subprocess.Popen[str]:
    """Start the process; it finds the package where this one does."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", "-m", MODULE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
