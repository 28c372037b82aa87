"""Date and time functions. Times are Unix times in seconds, texts of them in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from raylay.services.expressions.functions.registry import Group, Surroundings

DATES = Group()
FORMAT_CHARACTERS_MAX = 256
SHOWN_BYTES_MAX = 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARTS = re.compile(r"%(0?\d?)([a-zA-Z%])")


@DATES.add("UNIX_TIMESTAMP", needs="clock", is_deterministic=False)
def unix_timestamp(around: Surroundings) -> float | None:
    """The time now."""
    return around.now_s


@DATES.add("STRFTIME", "text number")
def strftime(form: str, seconds: float) -> str | None:
    """A time in words: what strftime knows, `%f` for microseconds, `%03f` for milliseconds."""
    if len(form) > FORMAT_CHARACTERS_MAX or seconds != seconds:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=round(seconds * 1e6))
    except OverflowError:
        return None

    def part(found: re.Match[str]) -> str:
        if found[2] != "f":
            # A width would make a text as long as anybody likes.
            return f"%{found[2]}"
        digits = int(found[1] or 6) if (found[1] or "6") != "0" else 6
        return f"{moment.microsecond:06d}"[: min(digits, 6)]

    shown = moment.strftime(_PARTS.sub(part, form))
    return shown if len(shown.encode("utf-8", "surrogateescape")) <= SHOWN_BYTES_MAX else None


@DATES.add("STRPTIME", "text text")
def strptime(text: str, form: str) -> float | None:
    """The time that a text says; in UTC, unless the text says where (`%z`)."""
    if len(form) > FORMAT_CHARACTERS_MAX or len(text) > FORMAT_CHARACTERS_MAX:
        return None
    try:
        moment = datetime.strptime(text, form)
    except (ValueError, re.error):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds()
