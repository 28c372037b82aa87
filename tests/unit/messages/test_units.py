"""Sizes and times as people write them (services/messages/units.py)."""

from __future__ import annotations

import pytest

from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import format_milliseconds, parse_bytes, parse_milliseconds


def test_sizes_and_times() -> None:
    assert parse_bytes("64MiB") == 64 * 1024 * 1024
    assert parse_bytes("1.5GB") == 1_500_000_000
    assert parse_bytes(4096) == 4096
    assert parse_milliseconds("1.5m") == 90_000
    assert parse_milliseconds(0) == 0
    assert parse_milliseconds(format_milliseconds(90_000)) == 90_000


@pytest.mark.parametrize("value", ["5", 5, True, "soon", "1.5ms"])
def test_a_time_without_a_unit_or_of_half_a_millisecond_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^client\.timeout: "):
        parse_milliseconds(value, "client.timeout")
