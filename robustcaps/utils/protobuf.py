"""A reader of the protocol buffer wire format, for the few messages of TensorFlow's files."""

from __future__ import annotations

from collections.abc import Iterator

_MAX_VARINT = 10
"""Bytes of the longest variable-length integer."""
_FIXED = {1: 8, 5: 4}
"""Bytes of fixed-width values, by wire type."""

Field = tuple[int, int | bytes]
"""Number and value of a field."""


class FormatError(ValueError):
    """Bytes that violate their format; the message says how."""


def read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length unsigned integer and the position after it."""
    value = 0
    for count in range(_MAX_VARINT):
        if position >= len(content):
            raise FormatError("a number is truncated")
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & (1 << 64) - 1, position
    raise FormatError("a number is longer than 10 bytes")


def read_fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message: integers, and the bytes of strings, messages and packed lists."""
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, position = read_varint(message, position)
        else:
            if wire == 2:
                size, position = read_varint(message, position)
            elif wire in _FIXED:
                size = _FIXED[wire]
            else:
                raise FormatError(f"unknown wire type {wire}")
            if size > len(message) - position:
                raise FormatError("a field is truncated")
            content = message[position : position + size]
            position += size
            value = content if wire == 2 else int.from_bytes(content, "little")
        yield number, value


def as_integer(value: int | bytes) -> int:
    """Return a field that must be an integer, as int64."""
    if isinstance(value, bytes):
        raise FormatError("a field is bytes instead of a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def as_bytes(value: int | bytes) -> bytes:
    """Return a field that must be a string, a message or a packed list."""
    if isinstance(value, int):
        raise FormatError("a field is a number instead of bytes")
    return value


def read_integers(fields: Iterator[Field], number: int) -> list[int]:
    """Return a repeated int64 field, packed or not."""
    values: list[int] = []
    for found, value in fields:
        if found != number:
            continue
        if isinstance(value, int):
            values.append(as_integer(value))
            continue
        position = 0
        while position < len(value):
            one, position = read_varint(value, position)
            values.append(as_integer(one))
    return values
