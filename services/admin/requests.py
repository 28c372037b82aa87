"""A request to the administrator's interface: its path and query, read and bounded before anything
is looked up (behaviour.md 9.2).

    /amps/instance/clients.json                     a node in a format
    /amps/instance/clients/7/bytes_in.csv?t0=…&t1=… the history of a leaf
    /amps/administrator/replication/north/downgrade an action

An id may hold a slash or a full stop: `%2F` and `%2E` keep them from being read as a step or a
format.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from raylay.services.errors import ConfigurationError

ROOT = "amps"
PATH_CHARACTERS_MAX = 4_096
STEPS_MAX = 16
Format = Literal["json", "xml", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
TIMESTAMP_FORMAT = "%Y%m%dT%H%M%S.%fZ"
"""The documented format of a point in time, in UTC."""


@dataclass(frozen=True, slots=True)
class Period:
    """A closed period of history in microseconds since 1970.

    Attributes:
        first_us: None: from the first sample on.
        last_us: None: up to the last sample.
    """

    first_us: int | None
    last_us: int | None


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """A parsed request.

    Attributes:
        steps: the decoded names below `/amps`.
        format: `json`, `xml` or `csv`; None: the path names no format.
        period: the wanted part of the history; None: the present values.
    """

    steps: tuple[str, ...]
    format: Format | None
    period: Period | None


def read_request(path: str, query: Sequence[tuple[str, str]]) -> ResourceRequest:
    """Reads a request.

    Args:
        path: path of the request as it came, percent-encoded, without the query.
        query: the decoded parameters in their order. All but `t0` and `t1` are for the code that
            performs the action.

    Raises:
        ConfigurationError: the path is too long or is not below `/amps`, or a time cannot be read.
    """
    if len(path) > PATH_CHARACTERS_MAX:
        raise ConfigurationError(
            f"the path has {len(path)} characters: at most {PATH_CHARACTERS_MAX} are read"
        )
    front, _, last = path.rpartition("/")
    name, dot, ending = last.rpartition(".")
    found: Format | None = None
    for each in FORMATS:
        if dot and ending == each:
            found, path = each, f"{front}/{name}"
    raw = [step for step in path.split("/") if step]
    if not raw or raw[0] != ROOT:
        raise ConfigurationError(f"no such path: resources are below /{ROOT}/")
    if len(raw) > STEPS_MAX:
        raise ConfigurationError(f"the path has {len(raw)} steps: at most {STEPS_MAX} are read")
    steps = tuple(_decoded(step) for step in raw[1:])
    return ResourceRequest(steps, found, _period(query))


def _decoded(step: str) -> str:
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), step.encode())
    return raw.decode("utf-8", "replace")


_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")


def _period(query: Sequence[tuple[str, str]]) -> Period | None:
    times: dict[str, int] = {}
    for name, text in query:
        if name in ("t0", "t1"):
            if name in times:
                raise ConfigurationError(f"{name} is given twice")
            times[name] = read_time(text, name)
    if not times:
        return None
    found = Period(times.get("t0"), times.get("t1"))
    if found.first_us is not None and found.last_us is not None and found.first_us > found.last_us:
        raise ConfigurationError("t0 is later than t1: give the earlier time as t0")
    return found


def read_time(text: str, name: str) -> int:
    """Reads a point in time, in UTC where it names no zone.

    Args:
        text: `20230830T000000.000000Z` or any other form of ISO 8601.
        name: name of the parameter, for the error.

    Returns:
        Microseconds since 1970.

    Raises:
        ConfigurationError: the text is no time.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{name}={text[:40]!r} is no time: give it in ISO 8601, such as 20230830T000000Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    time_us = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    if not _FIRST_US <= time_us <= _LAST_US:
        # In UTC the time lies in a year that `datetime` cannot represent.
        raise ConfigurationError(f"{name}={text[:40]!r} is out of range: give one of this time")
    return time_us


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST_US, _LAST_US = (
    (each.replace(tzinfo=datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1)
    for each in (datetime.datetime.min, datetime.datetime.max)
)


def number_in(query: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    """Returns a whole number of a query, `default` where the query has none of the name, and
    `maximum` where the number is larger.

    Raises:
        ConfigurationError: the value is no whole number from 0 on.
    """
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise ConfigurationError(f"{name}={text[:40]!r} is no number: give one from 0 on")
    return min(int(text), maximum)


def format_time(time_us: int) -> str:
    """Returns a time in microseconds since 1970 in the documented format."""
    moment = _EPOCH + datetime.timedelta(microseconds=time_us)
    return moment.strftime(TIMESTAMP_FORMAT)


def to_csv(samples: Sequence[tuple[int, str]]) -> bytes:
    """Returns the history of a leaf: a line with time and value for each sample."""
    return "".join(f"{format_time(at)},{_csv(value)}\n" for at, value in samples).encode()


def _csv(text: str) -> str:
    """Quotes a text where CSV, or a spreadsheet that would take it for a formula, needs it."""
    if text[:1] in ("=", "+", "@", "\t", "\r") or (text[:1] == "-" and not _is_number(text)):
        text = f"'{text}"
    if any(each in text for each in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
