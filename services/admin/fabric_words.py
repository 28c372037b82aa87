"""Durations, times and lists in the sentences about a fabric."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NAMES_SHOWN = 3
_STEPS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Returns a duration in its two largest units: `0.4 s`, `42 s`, `2 m 10 s`, `3 h`."""
    if seconds < 0:
        seconds = 0.0
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    left = round(seconds)
    at = next(at for at, (_, size) in enumerate(_STEPS) if left >= size)
    unit, size = _STEPS[at]
    whole, rest = divmod(left, size)
    for lower, below in _STEPS[at + 1 : at + 2]:
        if rest >= below:
            return f"{whole} {unit} {rest // below} {lower}"
    return f"{whole} {unit}"


def clock(time_us: int) -> str:
    """Returns the time of day, `04:11:59 UTC`, of a time in microseconds since 1970."""
    try:
        moment = _EPOCH + datetime.timedelta(microseconds=time_us)
    except OverflowError:
        return "an impossible time"
    return f"{moment:%H:%M:%S} UTC"


def messages(number: int) -> str:
    """Returns a number of messages: `1 message`, `1,204 messages`."""
    return f"{number:,} message{'' if number == 1 else 's'}"


def names(every: Iterable[str]) -> str:
    """Lists names for a sentence, the first few of many."""
    found = list(every)
    shown = found[:NAMES_SHOWN]
    if len(found) > len(shown):
        return f"{', '.join(shown)} and {len(found) - len(shown)} more"
    return (
        " and ".join(each for each in (", ".join(shown[:-1]), shown[-1]) if each) if shown else ""
    )
