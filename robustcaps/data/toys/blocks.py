"""Images of a split in blocks: rendered in parallel the first time, read from a cache afterwards."""

from __future__ import annotations

import functools
import hashlib
import io
import multiprocessing
import os
import signal
import threading
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robustcaps.data.protocol import PIXELS, SAMPLES, Eye, Pixels
from robustcaps.data.toys.factors import sample_factors
from robustcaps.data.toys.render import render
from robustcaps.data.toys.scene import scenes_of

BLOCK = 90
"""Samples in a block."""


@dataclass(frozen=True)
class _Block:
    """One eye's images of consecutive samples of a split."""

    split: str
    number: int
    eye: Eye

    @property
    def samples(self) -> range:
        return range(self.number * BLOCK, min((self.number + 1) * BLOCK, SAMPLES))

    @property
    def path(self) -> Path:
        return cache_folder() / f"{self.split}-{self.eye}" / f"{self.number:03}.npy"


def draw_blocks(split: str, count: int, eyes: Sequence[Eye]) -> Iterator[Pixels]:
    """Yield the first `count` samples of a split in order, as blocks of pixels (n, eyes, 96, 96)."""
    rows = [[_Block(split, number, eye) for eye in eyes] for number in range(-(-count // BLOCK))]
    missing = [block for row in rows for block in row if not os.access(block.path, os.R_OK)]
    to_draw = set(missing)
    with _drawings(missing) as drawn:
        for number, row in enumerate(rows):
            pixels = [_store(block, next(drawn)) if block in to_draw else _load(block) for block in row]
            yield np.stack(pixels, axis=1)[: count - number * BLOCK]


def cache_folder() -> Path:
    """Return the cache directory in $ROBUSTCAPS_CACHE or the user's cache, named after the renderer's digest."""
    chosen = os.environ.get("ROBUSTCAPS_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robustcaps"
    return (Path(chosen) if chosen else home) / f"toys-{_drawing_digest()}"


@functools.cache
def _drawing_digest() -> str:
    """Return a digest of the renderer's sources, so that changed code never reads outdated blocks."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for file in (package.parent / "shuffling.py", package.parent / "protocol.py", *sorted(package.rglob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _draw(block: _Block) -> Pixels:
    return render(scenes_of(sample_factors(block.split, np.array(block.samples)), block.eye))


@contextmanager
def _drawings(blocks: list[_Block]) -> Iterator[Iterator[Pixels]]:
    """Draw blocks in order, in as many processes as torch may use threads.

    Threads would wait for each other's Python lock. Processes are forked, as torch's own data loaders are; where that
    is not possible, this process draws alone.
    """
    workers = min(torch.get_num_threads(), len(blocks))
    can_fork = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
    if workers < 2 or not can_fork:
        yield map(_draw, blocks)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _ignore_interrupts)
    try:
        yield pool.map(_draw, blocks)
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _load(block: _Block) -> Pixels:
    """Read a block from the cache, or draw it again if it is damaged."""
    try:
        content = block.path.read_bytes()
        body, checksum = content[:-4], content[-4:]
        sound = zlib.crc32(body).to_bytes(4, "little") == checksum
        pixels: Pixels | None = np.load(io.BytesIO(body), allow_pickle=False) if sound else None
    except (OSError, ValueError, EOFError):
        pixels = None
    if pixels is None or pixels.dtype != np.uint8 or pixels.shape != (len(block.samples), PIXELS, PIXELS):
        return _store(block, _draw(block))
    return pixels


def _store(block: _Block, pixels: Pixels) -> Pixels:
    """Write a block to the cache atomically, in NumPy's format with a checksum."""
    buffer = io.BytesIO()
    np.save(buffer, pixels, allow_pickle=False)
    body = buffer.getvalue()
    unfinished = block.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    try:
        block.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
        unfinished.replace(block.path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        _warn_unwritable(str(cache_folder()), error.strerror)
    return pixels


@functools.cache
def _warn_unwritable(folder: str, reason: str) -> None:
    warnings.warn(
        f"the toys cache {folder} is not writable, so images are rendered again each time ({reason}).", stacklevel=2
    )
