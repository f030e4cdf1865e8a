"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, in NumPy."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_ROW = 256
"""Bytes whose contributions are looked up at once."""
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8

Words = NDArray[np.uint32]


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of bytes.

    A CRC is linear over GF(2): rows of 256 bytes are looked up independently, then neighbours are combined pairwise.
    """
    padding = -len(content) % _ROW
    rows = np.frombuffer(bytes(padding) + content, np.uint8).reshape(-1, _ROW)
    words = np.bitwise_xor.reduce(_row_tables()[np.arange(_ROW), rows], axis=1)
    level = 0
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, np.uint32), words])
        words = _apply(_shift_tables(level), words[0::2]) ^ words[1::2]
        level += 1
    linear = int(words[0]) if len(words) else 0
    return linear ^ _shifted_ones(len(content)) ^ _ONES


def masked_crc32c(content: bytes) -> int:
    """Return the CRC-32C as TensorFlow stores it: rotated by 15 bits, plus a constant."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES


@functools.cache
def _byte_table() -> Words:
    """Return the CRC of every single byte, from register 0."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table


@functools.cache
def _row_tables() -> Words:
    """Return the contribution of every byte at every position of a row (256, 256)."""
    tables = np.empty((_ROW, 256), np.uint32)
    tables[-1] = _byte_table()
    for position in reversed(range(_ROW - 1)):
        tables[position] = _append_zero(tables[position + 1])
    return tables


@functools.cache
def _shift_tables(level: int) -> Words:
    """Return tables (4, 256) that append 256 * 2^level zero bytes to a CRC, one for each of its bytes."""
    if level:
        half = _shift_tables(level - 1)
        return _apply(half, half)
    words = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, None]
    for _ in range(_ROW):
        words = _append_zero(words)
    return words


@functools.lru_cache(maxsize=1024)
def _shifted_ones(length: int) -> int:
    """Return the contribution of the initial register, all ones, after so many bytes."""
    words = np.full(1, _ONES, np.uint32)
    rows, rest = divmod(length, _ROW)
    for level in range(rows.bit_length()):
        if rows >> level & 1:
            words = _apply(_shift_tables(level), words)
    for _ in range(rest):
        words = _append_zero(words)
    return int(words[0])


def _append_zero(words: Words) -> Words:
    """Return CRCs after one more zero byte."""
    appended: Words = _byte_table()[words & 0xFF] ^ words >> np.uint32(8)
    return appended


def _apply(tables: Words, words: Words) -> Words:
    """Return the images of CRCs under the linear map of these tables."""
    first, second, third, fourth = (tables[byte][words >> np.uint32(8 * byte) & 0xFF] for byte in range(4))
    mapped: Words = first ^ second ^ third ^ fourth
    return mapped
