"""Delivery rates as the options of a subscribe (behaviour.md 2.5).

rate=500      messages a second
rate=500KB    bytes of records a second; KB, MB and GB are powers of 1,000
rate=2X, .5X  a multiple of the speed at which this instance received the messages
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from raylay.services.errors import RemoteProtocolError

RATE_MAX = 1e12
GAP_US_MAX = 365 * 86_400 * 1_000_000

_RATE = re.compile(
    r"^(\d{1,15}(?:\.\d{0,9})?|\.\d{1,9})\s*(X|B|KB|MB|GB)?$", re.ASCII | re.IGNORECASE
)
_GAP = re.compile(
    r"^(\d{1,15}(?:\.\d{0,9})?|\.\d{1,9})\s*(us|ms|s|m|h|d)$", re.ASCII | re.IGNORECASE
)
_BYTES = {"b": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
_GAP_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


@dataclass(frozen=True, slots=True)
class Rate:
    """A parsed rate.

    Attributes:
        unit: the unit that `per_s` counts; `speed`: a multiple of the original speed.
        max_gap_us: with `speed`, the longest pause in microseconds; None: the original pauses,
            however long.
    """

    unit: Literal["messages", "bytes", "speed"]
    per_s: float
    max_gap_us: int | None = None


def parse_rate(rate: str, max_gap: str = "") -> Rate:
    """Parses the options `rate` and `rate_max_gap` of a subscribe.

    Raises:
        RemoteProtocolError: with reason `bad_command`, naming the forms that are understood.
    """
    match = _RATE.match(rate.strip())
    value = float(match[1]) if match else 0.0
    if match is None or not 0 < value <= RATE_MAX:
        raise RemoteProtocolError(
            f"rate {rate[:80]!r} is invalid: give messages a second (500), bytes a second (500KB) "
            "or a multiple of the original speed (2X, .5X), above zero",
            "bad_command",
        )
    unit = (match[2] or "").lower()
    if unit != "x":
        if max_gap:
            raise RemoteProtocolError(
                f"rate_max_gap goes with a multiple of the original speed, and rate is {rate}: "
                "leave it out, or give a rate like 2X",
                "bad_command",
            )
        return Rate("bytes", value * _BYTES[unit]) if unit else Rate("messages", value)
    return Rate("speed", value, parse_gap_us(max_gap) if max_gap else None)


def parse_gap_us(text: str) -> int:
    """Returns `rate_max_gap`, such as 10s or 500ms, in microseconds.

    Raises:
        RemoteProtocolError: with reason `bad_command`.
    """
    match = _GAP.match(text.strip())
    gap_us = int(float(match[1]) * _GAP_US[match[2].lower()]) if match else -1
    if not 0 <= gap_us <= GAP_US_MAX:
        raise RemoteProtocolError(
            f"rate_max_gap {text[:80]!r} is no time: give one like 10s, 500ms or 1m, up to 365d",
            "bad_command",
        )
    return gap_us
