"""Checksums of strings: CRC-32C, and CRC-64 with the reflected polynomial of Jones."""

from __future__ import annotations

from raylay.services.expressions.functions.registry import FunctionGroup
from raylay.services.messages.lossless_text import bytes_of

CHECKSUMS = FunctionGroup()
TEXT_BYTES_MAX = 1 << 18
"""Longest text with a checksum; for a longer one the result is NULL, because it would take longer
than a filter may."""
CHARACTER_STEPS = 100


def _table(polynomial: int) -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ polynomial * (value & 1)
        table.append(value)
    return tuple(table)


_CASTAGNOLI = _table(0x82F63B78)
_JONES = _table(0x95AC9329AC4BC9B5)


def _checksum(data: bytes, table: tuple[int, ...], value: int) -> int:
    for each in data:
        value = table[(value ^ each) & 0xFF] ^ value >> 8
    return value


@CHECKSUMS.add("CRC32", "text", character_steps=CHARACTER_STEPS)
def crc32(text: str) -> int | None:
    """Returns the CRC-32C (Castagnoli)."""
    data = bytes_of(text)
    if len(data) > TEXT_BYTES_MAX:
        return None
    return _checksum(data, _CASTAGNOLI, 0xFFFFFFFF) ^ 0xFFFFFFFF


@CHECKSUMS.add("CRC64", "text", character_steps=CHARACTER_STEPS)
def crc64(text: str) -> int | None:
    """Returns the CRC-64, starting from 0, without a final step."""
    data = bytes_of(text)
    return None if len(data) > TEXT_BYTES_MAX else _checksum(data, _JONES, 0)
