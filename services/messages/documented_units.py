"""Intervals, sizes and numbers as AMPSConfig writes them (behaviour.md, general conventions).

Intervals have the units ns us ms s m h d w, sizes kb mb gb tb, in any case; a number may end in k
(1,000) or M (1,000,000). A kb is 1,000 bytes: the documents do not say, and the YAML files of
Raylay mean the same by it.
"""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)")

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
BYTES = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_COUNTS = {"": 1, "k": 1000, "M": 1_000_000}
_INTERVAL = "an interval such as 500ms, 15s or 1d (units: ns us ms s m h d w)"
_SIZE = "a size such as 10MB or 1GB (units: kb mb gb tb; a number alone is bytes)"


def parse_interval_ns(text: str) -> int:
    """Returns the nanoseconds of an interval such as `15s`. A number without a unit is refused,
    except 0.

    Raises:
        ValueError: saying what was expected and what came.
    """
    number, unit = _split(text, _INTERVAL)
    if not unit and number == 0:
        return 0
    factor = NANOSECONDS.get(unit.lower())
    if factor is None:
        missing = " without a unit" if not unit else ""
        raise ValueError(f"expected {_INTERVAL}, got {text!r}{missing}")
    return _whole(number * factor, text, "nanoseconds")


def parse_size_bytes(text: str) -> int:
    """Returns the bytes of a size such as `10MB`, `1.5gb`, `10M` or `4096`.

    Raises:
        ValueError: saying what was expected and what came.
    """
    number, unit = _split(text, _SIZE)
    factor = _COUNTS.get(unit) or BYTES.get(unit.lower())
    if factor is None:
        raise ValueError(f"expected {_SIZE}, got {text!r}")
    return _whole(number * factor, text, "bytes")


def parse_count(text: str) -> int:
    """Returns the whole number of a text such as `64`, `10k` or `2M`.

    Raises:
        ValueError: saying what was expected and what came.
    """
    expected = "a whole number such as 64, 10k or 2M"
    number, unit = _split(text, expected)
    factor = _COUNTS.get(unit)
    if factor is None:
        raise ValueError(f"expected {expected}, got {text!r}")
    return _whole(number * factor, text, "units")


def format_interval(value_ns: int) -> str:
    """Returns an interval in the largest unit that gives a whole number: `15s`."""
    return _formatted(value_ns, NANOSECONDS, "ns")


def format_size(value_bytes: int) -> str:
    """Returns a size in the largest unit that gives a whole number: `10mb`."""
    return (
        _formatted(value_bytes, BYTES, "b").removesuffix("b")
        if _odd(value_bytes)
        else (_formatted(value_bytes, BYTES, "b").upper())
    )


def _odd(value_bytes: int) -> bool:
    return not value_bytes or bool(value_bytes % 1000)


def _formatted(value: int, units: dict[str, int], smallest: str) -> str:
    for unit, factor in reversed(units.items()):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return f"{value}{smallest}"


def _split(text: str, expected: str) -> tuple[Fraction, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {expected}, got {text!r}")
    return Fraction(match[1]), match[2]


def _whole(value: Fraction, text: str, what: str) -> int:
    if value.denominator != 1:
        raise ValueError(f"{text!r} is no whole number of {what}")
    return int(value)
