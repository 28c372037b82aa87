"""Sizes, times and shares as people write them: `64MiB`, `500ms`, `10s`, `50%`; and as types of the
settings that processes share with files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from raylay.services.errors import ConfigurationError

_QUANTITY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")

# Decimal and binary prefixes mean what they mean in the field: kB is 1,000, KiB is 1,024.
_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_MILLISECONDS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def parse_bytes(value: object, where: str = "") -> int:
    """Returns the number of bytes that a text such as `64MiB`, `1.5GB` or `4096B`, or a whole
    number of bytes, gives.

    Raises:
        ConfigurationError: with `where`, the value and the units that are understood.
    """
    return _parse(value, where, "size", _BYTES, plain="bytes")


def parse_milliseconds(value: object, where: str = "") -> int:
    """Returns the milliseconds of a text such as `500ms`, `10s`, `1.5m`, `2h` or `7d`. A number
    without a unit is refused, except 0, because a reader could not see whether it means seconds or
    milliseconds.

    Raises:
        ConfigurationError: with `where`, the value and the units that are understood.
    """
    if value == 0 and not isinstance(value, bool):
        return 0
    return _parse(value, where, "time", _MILLISECONDS, plain=None)


def format_bytes(value_bytes: int) -> str:
    """Returns a number of bytes in the largest binary unit that gives a whole number: `64MiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value_bytes and value_bytes % _BYTES[unit] == 0:
            return f"{value_bytes // _BYTES[unit]}{unit}"
    return f"{value_bytes}B"


def about_bytes(value_bytes: int) -> str:
    """Returns an approximate number of bytes, for people: `1.5 GiB`."""
    value, unit = float(value_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def format_milliseconds(value_ms: int) -> str:
    """Returns a time in the largest unit that gives a whole number: `10s`."""
    for unit in ("d", "h", "m", "s"):
        if value_ms and value_ms % _MILLISECONDS[unit] == 0:
            return f"{value_ms // _MILLISECONDS[unit]}{unit}"
    return f"{value_ms}ms"


def _parse(
    value: object, where: str, kind: str, units: dict[str, int], *, plain: str | None
) -> int:
    lead = f"{where}: " if where else ""
    expected = f"expected a {kind} such as {_example(kind)} (units: {', '.join(units)})"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigurationError(f"{lead}{expected}, got {value!r}")
    if isinstance(value, int | float):
        if plain is None or value != int(value) or value < 0:
            raise ConfigurationError(f"{lead}{expected}, got {value!r} without a unit")
        return int(value)
    match = _QUANTITY.match(value)
    if match is None:
        raise ConfigurationError(f"{lead}{expected}, got {value!r}")
    number, unit = match.groups()
    if not unit and plain is not None and "." not in number:
        return int(number)
    if unit not in units:
        raise ConfigurationError(f"{lead}{expected}, got {value!r}")
    amount = float(number) * units[unit]
    if not math.isfinite(amount):
        raise ConfigurationError(f"{lead}this {kind} is too long a number")
    if not math.isclose(amount, round(amount), abs_tol=1e-6):
        raise ConfigurationError(
            f"{lead}{value!r} is no whole number of {'bytes' if plain else 'milliseconds'}"
        )
    return round(amount)


def _example(kind: str) -> str:
    return "64MiB" if kind == "size" else "500ms or 10s"


def parse_share(value: object) -> object:
    """Returns the share that a text such as `50%` or `0.5` gives; a value that is no text is
    returned unchanged.

    Raises:
        ConfigurationError: the text is none.
    """
    if not isinstance(value, str):
        return value
    number, is_percent = value.strip().removesuffix("%"), value.strip().endswith("%")
    try:
        return float(number) / 100 if is_percent else float(number)
    except ValueError:
        raise ConfigurationError(f"expected a share such as 50% or 0.5, got {value!r}") from None


def format_share(value: float) -> str:
    """Returns the share in percent: `50%`."""
    return f"{value * 100:.10g}%"


class Written:
    """The mark of a type that is written in files otherwise than it is kept.

    The model of a fabric reads it by that; a process that only keeps it loads nothing for it.

    Args:
        parse: reads what a file has; a ConfigurationError says what is wrong.
        show: the inverse.
    """

    __slots__ = ("_show", "parse")

    def __init__(self, parse: Callable[[Any], Any], show: Callable[[Any], Any]) -> None:
        self.parse = parse
        self._show = show

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema  # late: instances and links never come here

        return core_schema.no_info_before_validator_function(
            self._read,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(self._show),
        )

    def _read(self, value: object) -> object:
        try:
            return self.parse(value)
        except ConfigurationError as error:
            # pydantic adds the place to a ValueError; any other exception would lose it.
            raise ValueError(str(error)) from None


class AtLeast:
    """The mark of a type of which a file may have no less; tests and tools may."""

    __slots__ = ("_least",)

    def __init__(self, least: int) -> None:
        self._least = least

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema  # late: as above

        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: int) -> int:
        if value < self._least:
            raise ValueError(f"expected at least {self._least:,}")
        return value


Bytes = Annotated[int, Written(parse_bytes, format_bytes)]
Milliseconds = Annotated[int, Written(parse_milliseconds, format_milliseconds)]
Share = Annotated[float, Written(parse_share, format_share)]
