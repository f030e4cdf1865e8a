from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.data.tfrecord import parse_example, read_records
from robustcaps.errors import UserError
from robustcaps.utils.protobuf import FormatError
from tests.tensorflow_files import crc, example, field, record

PATH = Path("some.tfrecords")


def read(content: bytes) -> list[bytes]:
    return list(read_records(io.BytesIO(content), PATH))


def test_records_come_back() -> None:
    assert read(b"") == []
    assert read(record(b"abc") + record(b"") + record(bytes(1000))) == [b"abc", b"", bytes(1000)]


LENGTH = struct.pack("<Q", 1 << 40)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (record(b"abc")[:5], "truncated: 7 bytes are missing"),
        (record(b"abc")[:-1], "truncated: 1 bytes are missing"),
        (record(b"abc") + b"\1" + record(b"abc")[1:], "the length of record 1 has a wrong checksum"),
        (record(b"abc").replace(b"abc", b"abd"), "damaged: record 0 has a wrong checksum"),
        (LENGTH + struct.pack("<I", crc(LENGTH)), "record 0 has 1099511627776 bytes, more than the maximum"),
    ],
)
def test_damage_is_one_line(content: bytes, problem: str) -> None:
    with pytest.raises(UserError, match=f"some.tfrecords: .*{problem}"):
        read(content)


def test_examples_are_parsed() -> None:
    content = example(image=b"pixels", label=[3], meta=[0, 1, -2, 1 << 40])
    assert parse_example(content) == {"image": [b"pixels"], "label": [3], "meta": [0, 1, -2, 1 << 40]}
    unpacked = field(1, field(1, field(1, b"meta") + field(2, field(3, field(1, 5) + field(1, 6)))))
    assert parse_example(unpacked) == {"meta": [5, 6]}
    floats = field(1, field(1, field(1, b"rate") + field(2, field(2, b""))))
    assert parse_example(floats) == {}


@given(st.binary(max_size=60))
def test_any_bytes_are_an_example_or_a_format_error(content: bytes) -> None:
    for each in (content, field(1, field(1, content))):
        try:
            features = parse_example(each)
        except FormatError:
            continue
        assert all(isinstance(value, bytes | int) for values in features.values() for value in values)
