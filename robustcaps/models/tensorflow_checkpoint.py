"""Reader of TensorFlow's V2 checkpoints without TensorFlow: an .index table and .data shards, checksums verified.

The index is an SSTable as in LevelDB: blocks of sorted, prefix-compressed (key, value) pairs, each followed by its
type and its masked CRC-32C, and a footer that leads to the block of blocks. Values are BundleEntryProto messages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustcaps.errors import UserError
from robustcaps.utils.crc32c import masked_crc32c
from robustcaps.utils.protobuf import FormatError, as_bytes, as_integer, read_fields, read_varint

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
"""Bytes after a block: its type and its checksum."""
_MAX_INDEX = 1 << 26
"""Bytes of the largest index that is read; those of real networks have kilobytes."""
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 10: "?", 19: "<f2"}
"""NumPy types by the number of TensorFlow's DataType."""
_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


@dataclass(frozen=True)
class Variable:
    """A tensor of a checkpoint and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None if its type is not supported, such as strings."""
    shard: int
    offset: int
    size: int
    checksum: int
    """Masked CRC-32C of its bytes."""
    partitioned: bool
    """Whether it is stored in slices."""

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class TensorFlowCheckpoint:
    """The variables of a checkpoint by name; `read` returns their values."""

    prefix: Path
    shards: int
    variables: dict[str, Variable]

    @property
    def index(self) -> Path:
        """The file that lists the variables."""
        return _index_path(self.prefix)

    def shard_path(self, number: int) -> Path:
        """Return the file of a shard."""
        return self.prefix.with_name(f"{self.prefix.name}.data-{number:05d}-of-{self.shards:05d}")

    def read(self, name: str) -> NDArray[Any]:
        """Return the value of a variable; raise `UserError` if its file is damaged."""
        variable = self.variables[name]
        path = self.shard_path(variable.shard)
        if variable.dtype is None or variable.partitioned:
            raise UserError(f"{self.index}: variable '{name}' has an unsupported type or is stored in slices.")
        try:
            with path.open("rb") as file:
                available = file.seek(0, 2) - variable.offset
                if available < variable.size:
                    missing = variable.size - max(available, 0)
                    raise UserError(f"{path}: truncated: {missing} bytes of variable '{name}' are missing.")
                file.seek(variable.offset)
                content = file.read(variable.size)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
        if masked_crc32c(content) != variable.checksum:
            raise UserError(f"{path}: damaged: variable '{name}' has a wrong checksum.")
        return np.frombuffer(content, variable.dtype).reshape(variable.shape)


def open_checkpoint(path: Path) -> TensorFlowCheckpoint:
    """Open a checkpoint.

    Args:
        path: Its prefix (such as model.ckpt-1), one of its files, or a folder; of a folder, the checkpoint that its
            file 'checkpoint' names as the newest.

    Returns:
        The checkpoint; values are read on demand.
    """
    prefix = _find_prefix(path)
    index = _index_path(prefix)
    try:
        if index.stat().st_size > _MAX_INDEX:
            raise UserError(f"{index}: too large to be the index of a TensorFlow checkpoint.")
        content = index.read_bytes()
    except OSError as error:
        raise UserError(f"{index}: cannot be read: {error.strerror}.") from error
    try:
        entries = dict(_read_table(content))
        shards = _read_header(entries.pop(b"", None))
        variables = [_read_entry(key, value, shards) for key, value in entries.items()]
    except FormatError as error:
        raise UserError(f"{index}: not a complete index of a TensorFlow checkpoint: {error}.") from error
    return TensorFlowCheckpoint(prefix, shards, {variable.name: variable for variable in variables})


def _index_path(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _find_prefix(path: Path) -> Path:
    """Return the common beginning of the names of a checkpoint's files."""
    if path.is_dir():
        return _newest_in(path)
    prefix = path.with_name(_PART.sub("", path.name))
    if _index_path(prefix).is_file():
        return prefix
    if prefix.is_file():
        raise UserError(
            f"{prefix}: not a V2 checkpoint: there is no {_index_path(prefix).name} beside it "
            "(unpack an archive first; the older V1 format is not supported)."
        )
    raise UserError(f"{_index_path(prefix)}: no such file; expected the index of a TensorFlow checkpoint.")


def _newest_in(folder: Path) -> Path:
    """Return the prefix of the checkpoint that the file 'checkpoint' names, or of the only one."""
    state = folder / "checkpoint"
    if state.is_file():
        line = re.search(r'^model_checkpoint_path: "([^"]+)"', state.read_text(errors="replace"), re.MULTILINE)
        if line is None:
            raise UserError(f"{state}: does not name a model_checkpoint_path.")
        prefix = folder / Path(line[1]).name  # absolute paths are those of the machine that wrote it
        if not _index_path(prefix).is_file():
            raise UserError(f"{state}: names '{prefix.name}', but there is no {_index_path(prefix)}.")
        return prefix
    found = sorted(folder.glob("*.index"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise UserError(f"{folder}: expected one TensorFlow checkpoint (*.index), found: {names}.")
    return found[0].with_suffix("")


def _read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of an SSTable in order."""
    if len(content) < _FOOTER:
        raise FormatError("it is shorter than its footer")
    footer = content[-_FOOTER:]
    if int.from_bytes(footer[40:], "little") != _MAGIC:
        raise FormatError("wrong magic number at its end")
    _, position = _read_handle(footer, 0)  # of the block of filters, which TensorFlow does not use
    handle, _ = _read_handle(footer, position)
    last: bytes | None = None
    for _, value in _read_block(content, handle):
        for key, entry in _read_block(content, _read_handle(value, 0)[0]):
            if last is not None and key <= last:
                raise FormatError("keys are not in order")
            last = key
            yield key, entry


def _read_handle(content: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return offset and size of a block, and the position after them."""
    offset, position = read_varint(content, position)
    size, position = read_varint(content, position)
    return (offset, size), position


def _read_block(content: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a block after verifying it."""
    offset, size = handle
    end = offset + size
    if end + _TRAILER > len(content) - _FOOTER:
        raise FormatError("a block lies outside of the file")
    if masked_crc32c(content[offset : end + 1]) != int.from_bytes(content[end + 1 : end + _TRAILER], "little"):
        raise FormatError("a block has a wrong checksum")
    if content[end]:
        raise FormatError("a block is compressed, which is not supported")
    block = content[offset:end]
    restarts = int.from_bytes(block[-4:], "little")
    limit = size - 4 * (restarts + 1)
    if size < 4 or limit < 0:
        raise FormatError("a block is too short")
    yield from _read_pairs(block[:limit])


def _read_pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pairs of a block; keys store only what differs from the key before."""
    position, key = 0, b""
    while position < len(block):
        shared, position = read_varint(block, position)
        added, position = read_varint(block, position)
        size, position = read_varint(block, position)
        if shared > len(key) or added + size > len(block) - position:
            raise FormatError("an entry is truncated")
        key = key[:shared] + block[position : position + added]
        position += added
        yield key, block[position : position + size]
        position += size


def _read_header(message: bytes | None) -> int:
    """Return the number of shards from a BundleHeaderProto."""
    if message is None:
        raise FormatError("it has no header")
    fields = dict(read_fields(message))
    shards, big_endian = as_integer(fields.get(1, 0)), as_integer(fields.get(2, 0))
    if big_endian:
        raise FormatError("it is big-endian, which is not supported")
    if not 1 <= shards <= 99999:
        raise FormatError(f"it declares {shards} shards")
    return shards


def _read_entry(key: bytes, message: bytes, shards: int) -> Variable:
    """Return the variable that a BundleEntryProto describes."""
    try:
        name = key.decode()
    except UnicodeDecodeError as error:
        raise FormatError("a variable's name is not UTF-8") from error
    fields = list(read_fields(message))
    values = dict(fields)
    shard, offset, size, checksum = (as_integer(values.get(number, 0)) for number in (3, 4, 5, 6))
    shape = _read_shape(as_bytes(values.get(2, b"")))
    code = _DTYPES.get(as_integer(values.get(1, 0)))
    dtype = None if code is None else np.dtype(code)
    partitioned = any(number == 7 for number, _ in fields)
    if not 0 <= shard < shards or min(offset, size, *shape, 0) < 0:
        raise FormatError(f"variable '{name}' has an impossible place or shape")
    if dtype is not None and not partitioned and math.prod(shape) * dtype.itemsize != size:
        raise FormatError(f"variable '{name}' has {size} bytes, which do not fit its shape {shape}")
    return Variable(name, shape, dtype, shard, offset, size, checksum, partitioned)


def _read_shape(message: bytes) -> tuple[int, ...]:
    """Return the dimensions of a TensorShapeProto."""
    dimensions = [dict(read_fields(as_bytes(value))) for number, value in read_fields(message) if number == 2]
    return tuple(as_integer(fields.get(1, 0)) for fields in dimensions)
