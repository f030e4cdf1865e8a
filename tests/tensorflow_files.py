"""Writers of TensorFlow's files, as small as can be: checkpoints (V2) and TFRecords."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9}


def crc(content: bytes) -> int:
    """The masked CRC-32C, a bit at a time."""
    register = 0xFFFFFFFF
    for byte in content:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    register ^= 0xFFFFFFFF
    return ((register >> 15 | register << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write_checkpoint(
    prefix: Path, variables: Mapping[str, np.ndarray], *, checksum: Any = crc, header: bytes = field(1, 1)
) -> None:
    """Write PREFIX.index and PREFIX.data-00000-of-00001."""
    data, pairs = b"", [(b"", header)]
    for name, array in sorted(variables.items()):
        content = array.tobytes()
        shape = b"".join(field(2, field(1, size)) for size in array.shape)
        entry = field(1, DTYPES[array.dtype.name]) + field(2, shape) + field(4, len(data)) + field(5, len(content))
        pairs.append((name.encode(), entry + varint(6 << 3 | 5) + struct.pack("<I", checksum(content))))
        data += content
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(pairs))


def table(pairs: Sequence[tuple[bytes, bytes]], *, per_block: int = 3) -> bytes:
    """An SSTable with several blocks, whose keys share prefixes."""
    content, handles = b"", []
    for start in range(0, len(pairs), per_block):
        some = pairs[start : start + per_block]
        packed = block(some)
        handles.append((some[-1][0], varint(len(content)) + varint(len(packed) - 5)))
        content += packed
    index, filters = block(handles), block([])
    footer = (
        varint(len(content) + len(index)) + varint(len(filters) - 5) + varint(len(content)) + varint(len(index) - 5)
    )
    return content + index + filters + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def block(pairs: Iterable[tuple[bytes, bytes]], *, compression: int = 0) -> bytes:
    content, last = b"", b""
    for key, value in pairs:
        shared = next((i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last)))
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    content += struct.pack("<II", 0, 1) + bytes([compression])
    return content + struct.pack("<I", crc(content))


def example(**features: bytes | Sequence[int]) -> bytes:
    """A tf.train.Example; integers are packed, as TensorFlow writes them."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        else:
            feature = field(3, field(1, b"".join(map(varint, value))))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def record(content: bytes, *, checksum: Any = crc) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", checksum(length)) + content + struct.pack("<I", checksum(content))
