"""The options that select a part of the journals: times and topics."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from raylay.services.errors import ConfigurationError, RemoteProtocolError
from raylay.services.messages.bookmarks import Position, parse_position
from raylay.services.messages.topics import (
    compile_regex,
    is_regex,
)

if TYPE_CHECKING:
    from pyspark.sql import Column


def parse_utc(name: str, text: str) -> dt.datetime | None:
    """Returns the time that an option gives; None where it is empty.

    Raises:
        ConfigurationError: the text is no time; the error names the option.
    """
    if not text:
        return None
    found = time_of(text)
    if found is None:
        raise ConfigurationError(
            f"{name} is {text!r}: give a UTC time such as 2026-01-02T03:04:05, a day, or the "
            "seconds, milliseconds or microseconds since 1970"
        )
    return found


PLACE_FORMS = (
    "0, 0|1| (now), a bookmark, or a time such as 20260102T030405Z, 2026-01-02T03:04:05+01:00, a "
    "day, or a number since 1970"
)
"""The forms of the options `starting` and `ending`, for errors."""


def place_of(name: str, text: str) -> Position:
    """Returns the place in a log that an option names, other than by a time.

    Args:
        name: the option: `starting` or `ending`.

    Raises:
        ConfigurationError: it names none, or a range; the error names the option and its forms.
    """
    try:
        found = parse_position(text)
    except RemoteProtocolError:
        raise ConfigurationError(
            f"{name} is {text[:80]!r}, which is no place in a log: give {PLACE_FORMS}"
        ) from None
    if found.bounded:
        raise ConfigurationError(
            f"{name} is {text[:80]!r}, which is a range: give its ends with the options `starting` "
            "and `ending`"
        )
    return found


def time_of(text: str) -> dt.datetime | None:
    """Returns the time that a text in ISO 8601 names, or a number since 1970: of 9 to 11 digits in
    seconds, to 14 in milliseconds, to 17 in microseconds. None: it is no time. A time without a
    zone is UTC."""
    text = text.strip()
    if _SINCE_1970.fullmatch(text):
        whole, _, part = text.partition(".")
        digits = len(whole)
        unit_us = 1_000_000 if digits <= 11 else 1_000 if digits <= 14 else 1
        past_us = round(Fraction(f"{whole}.{part or 0}") * unit_us)
        try:
            return _EPOCH + dt.timedelta(microseconds=past_us)
        except OverflowError:
            return None
    try:
        found = dt.datetime.fromisoformat(text)
        return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None


def time_us_of(text: str) -> int | None:
    """Returns `time_of` in microseconds since 1970."""
    found = time_of(text)
    return None if found is None else (found - _EPOCH) // dt.timedelta(microseconds=1)


_SINCE_1970 = re.compile(r"[0-9]{9,17}(?:\.[0-9]{1,9})?")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_range(from_text: str, to_text: str) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Returns the times of `--from` (inclusive) and `--to` (exclusive).

    Raises:
        ConfigurationError: one is no time, or nothing lies between them.
    """
    first, last = parse_utc("--from", from_text), parse_utc("--to", to_text)
    if first is not None and last is not None and first >= last:
        raise ConfigurationError(
            f"--from {from_text} is not before --to {to_text}: no message lies between them"
        )
    return first, last


def parse_speed(text: str) -> float:
    """Returns the factor of `--speed`; 0 for `full`.

    Raises:
        ConfigurationError: the text is no number of 0 or more.
    """
    try:
        found = 0.0 if text == "full" else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise ConfigurationError(
            f"--speed is {text!r}: give 1 for the original speed, a multiple such as 10 or 0.5, "
            "or full"
        )
    return found


def topic_condition(topics: Sequence[str]) -> Column | None:
    """Returns a condition for rows of any of these topics; None where none is given. A topic with
    regex characters is an unanchored regular expression, as for a subscriber.

    Raises:
        ConfigurationError: a topic is no valid regular expression.
    """
    from pyspark.sql import functions as F

    for topic in topics:
        if is_regex(topic):
            compile_regex(topic, "--topic")
    names = [topic for topic in topics if not is_regex(topic)]
    tests = [F.col("topic").isin(names)] if names else []
    tests += [F.col("topic").rlike(topic) for topic in topics if is_regex(topic)]
    return reduce(or_, tests) if tests else None
