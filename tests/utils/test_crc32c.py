from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustcaps.utils.crc32c import crc32c, masked_crc32c
from tests.tensorflow_files import crc


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_published_values(content, expected):
    """Of RFC 3720, appendix B.4, and the usual check value."""
    assert crc32c(content) == expected


@given(st.binary(max_size=40), st.integers(0, 1500))
def test_any_length_is_that_of_a_loop_over_bits(content, more):
    content += bytes((7 * i + 1) % 251 for i in range(more))
    assert masked_crc32c(content) == crc(content)
