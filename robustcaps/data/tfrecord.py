"""Reader of TFRecord files without TensorFlow: records with verified checksums, and tf.train.Example messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from robustcaps.data.files import read_exactly
from robustcaps.errors import UserError
from robustcaps.utils.crc32c import masked_crc32c
from robustcaps.utils.protobuf import FormatError, as_bytes, read_fields, read_integers

MAX_RECORD = 1 << 24
"""Bytes of the largest record that is read."""
_BYTES_LIST, _INT64_LIST = 1, 3
"""Kinds of tf.train.Feature; lists of floats are left out."""

Example = dict[str, Sequence[bytes] | Sequence[int]]
"""The features of a sample by name."""


def read_records(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the records of an open file: length, its checksum, data, its checksum; `path` is for error messages."""
    number = 0
    while start := file.read(8):
        header = start + read_exactly(file, 12 - len(start), path)
        if masked_crc32c(header[:8]) != int.from_bytes(header[8:], "little"):
            raise UserError(f"{path}: damaged: the length of record {number} has a wrong checksum.")
        size = int.from_bytes(header[:8], "little")
        if size > MAX_RECORD:
            raise UserError(f"{path}: record {number} has {size} bytes, more than the maximum of {MAX_RECORD}.")
        content = read_exactly(file, size + 4, path)
        record = content[:size]
        if masked_crc32c(record) != int.from_bytes(content[size:], "little"):
            raise UserError(f"{path}: damaged: record {number} has a wrong checksum.")
        yield record
        number += 1


def parse_example(record: bytes) -> Example:
    """Return the features of a serialised tf.train.Example; raise `FormatError` if it is not one."""
    example: Example = {}
    for features in _messages(record, 1):
        for entry in _messages(features, 1):
            fields = dict(read_fields(entry))
            try:
                name = as_bytes(fields.get(1, b"")).decode()
            except UnicodeDecodeError as error:
                raise FormatError("the name of a feature is not UTF-8") from error
            for kind, value in read_fields(as_bytes(fields.get(2, b""))):
                if kind == _BYTES_LIST:
                    example[name] = _messages(as_bytes(value), 1)
                elif kind == _INT64_LIST:
                    example[name] = read_integers(read_fields(as_bytes(value)), 1)
    return example


def _messages(message: bytes, number: int) -> list[bytes]:
    """Return the values of a repeated field of bytes."""
    return [as_bytes(value) for found, value in read_fields(message) if found == number]
