"""Date and time functions. Times are Unix times in seconds, texts of them in UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from raylay.services.expressions.functions.registry import EvalContext, FunctionGroup
from raylay.services.messages.lossless_text import bytes_of

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
"""Format parts that stand for others, as in the C locale, whatever the host's locale."""
_PORTABLE = frozenset("aAbBdfGHIjmMpSuUVwWyYzZ%")
"""Format parts that every host writes and reads alike, in the C locale and in UTC."""


def _spelled_out(form: str) -> str:
    """Returns a format with its compound parts replaced by simple ones."""
    for _ in range(2):  # `%c` contains `%e`, which is not compound: no part needs a third round
        form = _PARTS.sub(lambda found: _MADE_OF.get(found[2], found[0]), form)
    return form


@DATES.add("UNIX_TIMESTAMP", needs="clock", is_deterministic=False)
def unix_timestamp(around: EvalContext) -> float | None:
    """Returns the present time."""
    return around.now_s


@DATES.add("STRFTIME", "text number")
def strftime(form: str, seconds: float) -> str | None:
    """Returns a time as text, in UTC and in the C locale on every host: `%f` microseconds, `%03f`
    milliseconds, `%s` seconds since 1970, the others as in C."""
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
            # strftime would use the host's time zone.
            return str(math.floor(seconds))
        if what == "e":
            return f"{moment.day:2d}"
        # A width could make a text of any length; unknown parts are plain text.
        return f"%{what}" if what in _PORTABLE else f"%%{what}"

    shown = moment.strftime(_PARTS.sub(part, _spelled_out(form)))
    return shown if len(bytes_of(shown)) <= SHOWN_BYTES_MAX else None


def _readable(found: re.Match[str]) -> str:
    """Returns a part in the form that strptime needs: its `%d` also accepts a day with a leading
    space."""
    return "%d" if found[2] == "e" else f"%{found[2]}"


@DATES.add("STRPTIME", "text text", character_steps=3_000)
def strptime(text: str, form: str) -> float | None:
    """Parses a time, in UTC unless the text has a zone (`%z`). Accepts everything that STRFTIME
    writes; `%s`, seconds since 1970, must stand alone."""
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
