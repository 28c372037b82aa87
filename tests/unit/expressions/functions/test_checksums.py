"""The checksums, against the published values of `123456789`."""

from __future__ import annotations

import pytest
from support.expressions_given import gives

from raylay.services.expressions.functions.checksums import TEXT_BYTES_MAX


@pytest.mark.covers("Filters by content", "CRC32 CRC64")
def test_crc32() -> None:
    gives("CRC32('123456789')", 0xE3069283)
    gives("CRC32(/s)", None, {"s": "x" * (TEXT_BYTES_MAX + 1)})


@pytest.mark.covers("Filters by content", "CRC32 CRC64")
def test_crc64() -> None:
    gives("CRC64('123456789')", 0xE9C6D914C4B8D9CA)
    gives("CRC64(/none)", None)
