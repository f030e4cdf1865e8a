"""CIFAR-10 (Krizhevsky 2009) from its official Python batches, packed or unpacked.

The batches are pickles, and unpickling can call anything. A restricted unpickler therefore only calls the stand-ins
below, which record the content of an array, and rejects all other files.
"""

from __future__ import annotations

import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from robustcaps.data.base import Data, Progress
from robustcaps.data.files import missing_files
from robustcaps.data.protocol import Pixels
from robustcaps.data.sources import SOURCES
from robustcaps.errors import UserError
from robustcaps.registry import DATASETS

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FOLDER = "cifar-10-batches-py"
_BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_SOURCE = "the page 'The CIFAR-10 dataset' (CIFAR-10 python version)"
_SHAPE = (3, 32, 32)
SHIFT = 4
"""Padding for random crops in training (He et al. 2016, section 4.2), in pixels."""


@DATASETS.register("cifar10")
def cifar10(*, split: str, limit: int | None, data_dir: Path, progress: Progress | None, crop: bool = True) -> Data:
    """Colour photographs of animals and vehicles, 32x32, from the official CIFAR-10 batches."""
    batches = [_parse(location, content) for location, content in _read_batches(data_dir, _BATCHES[split])]
    pixels = np.concatenate([pixels for pixels, _ in batches])[:limit]
    labels = np.concatenate([labels for _, labels in batches])[:limit]
    if progress is not None:
        progress(len(labels), len(labels))
    padding = (0, 0) if crop else (SHIFT, SHIFT)
    images = np.pad(pixels, ((0, 0), (0, 0), padding, padding)).astype(np.float32)
    images /= 255  # in place: the train split takes a gigabyte
    return Data(
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels),
        class_names=_CLASSES,
        name="cifar10",
        split=split,
        size=_SHAPE[-1],
        factors=pd.DataFrame({"category": np.array(_CLASSES)[labels]}),
    )


def _read_batches(data_dir: Path, names: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Return the location, for error messages, and the bytes of each batch."""
    archive = data_dir / "cifar10" / SOURCES["cifar10"][0].name
    if archive.is_file():
        found = _extract(archive, names)
        return [(f"{archive}: {name}", found[name]) for name in names]
    folders = (archive.parent / _FOLDER, data_dir / _FOLDER)
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        missing = f"neither a file {archive} nor a folder {' or '.join(map(str, folders))}"
        raise missing_files("cifar10", missing, data_dir, source=_SOURCE)
    for name in names:
        if not (folder / name).is_file():
            raise missing_files("cifar10", f"no file '{name}' in the folder {folder}", data_dir, source=_SOURCE)
    return [(str(folder / name), (folder / name).read_bytes()) for name in names]


def _extract(archive: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read batches from an archive without writing them to disk."""
    found = {}
    try:
        with tarfile.open(archive, "r|gz") as members:
            for member in members:
                name = member.name.removeprefix(f"{_FOLDER}/")
                file = members.extractfile(member) if name in names else None
                if file is not None:
                    found[name] = file.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{archive}: damaged: {error}. Delete it and download it again.") from error
    for name in names:
        if name not in found:
            raise UserError(f"{archive}: does not contain '{_FOLDER}/{name}'.")
    return found


def _parse(location: str, content: bytes) -> tuple[Pixels, NDArray[np.int64]]:
    """Return the pixels (n, 3, 32, 32) and labels of a batch."""
    try:
        batch = _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except UserError as error:
        raise UserError(f"{location}: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"{location}: damaged: not a CIFAR-10 batch: {error}.") from error
    try:
        pixels = batch[b"data"].values()
        labels = np.array(batch[b"labels"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{location}: not a CIFAR-10 batch: no byte array 'data' or no 'labels'.") from error
    if labels.ndim != 1 or pixels.shape != (len(labels), math.prod(_SHAPE)):
        raise UserError(
            f"{location}: contains {pixels.shape} bytes and {labels.shape} labels, expected n x 3072 and n."
        )
    if not set(labels.tolist()) <= set(range(len(_CLASSES))):
        raise UserError(f"{location}: labels must be integers from 0 to {len(_CLASSES) - 1}.")
    return pixels.reshape(-1, *_SHAPE), labels.astype(np.int64)


class _Array:
    """Stand-in for a NumPy array that records its state."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Record the state: (version, shape, dtype, is Fortran order, bytes)."""
        self.state = state

    def values(self) -> Pixels:
        """Return the array if its elements are bytes."""
        _, shape, dtype, is_fortran, content = self.state
        if dtype.code not in (b"u1", "u1"):
            raise TypeError
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


class _Type:
    """Stand-in for a NumPy dtype that records its code, e.g. u1."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore the state (byte order)."""


def _make_array(*_: object) -> _Array:
    """Stand-in for the function that creates an array before its state is set."""
    return _Array()


def _encode(text: str, _: str) -> bytes:
    """Stand-in for the function that decodes bytes in pickles of Python 3."""
    return text.encode("latin-1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _make_array,
    ("numpy._core.multiarray", "_reconstruct"): _make_array,
    ("_codecs", "encode"): _encode,
}


class _RestrictedUnpickler(pickle.Unpickler):
    """Unpickles numbers, text, lists, dicts and the stand-ins, and rejects everything else."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in _STAND_INS:
            raise UserError(f"refers to {module}.{name}, which no CIFAR-10 batch does; not loaded.")
        return _STAND_INS[module, name]
