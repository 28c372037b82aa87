"""Date and time functions. Times are Unix times in seconds, texts of them in UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from raylay.services.expressions.functions.registry import EvalContext, FunctionGroup

DATES = FunctionGroup()
FORMAT_CHARACTERS_MAX = 256
SHOWN_BYTES_MAX = 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PARTS = re.compile(r"%(0?\d?)([a-zA-Z%])")
_MADE_OF = {
    "c": "%a %b %e %H:%M:%S %Y",
    "D": "%m/%d/%y",
    "F": "%Y-%m-%d",
    "h": "%b",
    "n": "\n",
    "r": "%I:%M:%S %p",
    "R": "%H:%M",
    "t": "\t",
    "T": "%H:%M:%S",
    "x": "%m/%d/%y",
    "X": "%H:%M:%S",
}
"""Parts that stand for others, as the C locale has them: the host's own are not asked."""
_PORTABLE = frozenset("aAbBdfGHIjmMpSuUVwWyYzZ%")
"""Parts that every host writes and reads alike, in the C locale and in UTC."""


def _spelled_out(form: str) -> str:
    """A format with its compound parts made of simple ones."""
    for _ in range(2):  # `%c` has `%e`, which is none of them: no part is in another twice
        form = _PARTS.sub(lambda found: _MADE_OF.get(found[2], found[0]), form)
    return form


@DATES.add("UNIX_TIMESTAMP", needs="clock", is_deterministic=False)
def unix_timestamp(around: EvalContext) -> float | None:
    """The time now."""
    return around.now_s


@DATES.add("STRFTIME", "text number")
def strftime(form: str, seconds: float) -> str | None:
    """A time in words, in UTC and in the C locale on every host: `%f` microseconds, `%03f`
    milliseconds, `%s` seconds since 1970, the others as of C."""
    if len(form) > FORMAT_CHARACTERS_MAX or seconds != seconds:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=round(seconds * 1e6))
    except OverflowError:
        return None

    def part(found: re.Match[str]) -> str:
        what = found[2]
        if what == "f":
            digits = int(found[1] or 6) if (found[1] or "6") != "0" else 6
            return f"{moment.microsecond:06d}"[: min(digits, 6)]
        if what == "s":
            # strftime would take the host's time zone for it.
            return str(math.floor(seconds))
        if what == "e":
            return f"{moment.day:2d}"
        # A width would make a text as long as anybody likes; what is unknown is a text.
        return f"%{what}" if what in _PORTABLE else f"%%{what}"

    shown = moment.strftime(_PARTS.sub(part, _spelled_out(form)))
    return shown if len(shown.encode("utf-8", "surrogateescape")) <= SHOWN_BYTES_MAX else None


def _readable(found: re.Match[str]) -> str:
    """A part as strptime knows it: its `%d` takes a day with a space before it, too."""
    return "%d" if found[2] == "e" else f"%{found[2]}"


@DATES.add("STRPTIME", "text text", character_steps=3_000)
def strptime(text: str, form: str) -> float | None:
    """The time that a text says; in UTC, unless the text says where (`%z`). It reads what STRFTIME
    writes; `%s`, seconds since 1970, stands alone."""
    if len(form) > FORMAT_CHARACTERS_MAX or len(text) > FORMAT_CHARACTERS_MAX:
        return None
    if form == "%s":
        return float(text) if re.fullmatch(r"-?\d{1,12}", text) else None
    try:
        moment = datetime.strptime(text, _PARTS.sub(_readable, _spelled_out(form)))
    except (ValueError, re.error):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds()
