"""Bookmarks: the places in a log at which subscriptions start (behaviour.md 2.4).

0                       EPOCH, the first message of the log
0|1|                    NOW, the next message after the subscribe
<publisher>|<seq>|      behind this message
a,b,c                   behind the earliest of these in this instance's log
20260102T030405[.ffffff][Z]   the first message received at or after this UTC time
[a:b)  (a:b]  …         a range; `[`/`]` include the bookmark, `(`/`)` exclude it. A begin list
                        starts at its earliest, an end list ends at its latest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from raylay.services.errors import RemoteProtocolError

EPOCH = "0"
NOW = "0|1|"
BOOKMARKS_MAX = 10_000
"""Number of bookmarks in one list; a longer list is refused."""

_BOOKMARK = re.compile(r"^(\d{1,20})\|(\d{1,19})\|?$", re.ASCII)
_TIMESTAMP = re.compile(r"^(\d{8})T(\d{6})(?:\.(\d{1,6}))?Z?$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Point:
    """One place in a log."""

    kind: Literal["epoch", "now", "message", "time"]
    publisher: int = 0
    sequence: int = 0
    time_us: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """A parsed bookmark, list or range.

    Attributes:
        begin_included: whether a message at the begin is delivered. None outside of ranges: there
            it depends on the kind of point (`includes`).
    """

    begin: tuple[Point, ...]
    end: tuple[Point, ...] = ()
    begin_included: bool | None = None
    end_included: bool = False

    def includes(self, point: Point) -> bool:
        """Returns whether a message at a begin point is delivered. Outside of ranges, a message
        received at the given time is delivered, and a message named by its identity is not."""
        if self.begin_included is not None:
            return self.begin_included
        return point.kind in ("epoch", "time")

    @property
    def bounded(self) -> bool:
        return bool(self.end)


def format_bookmark(publisher: int, sequence: int) -> str:
    return f"{publisher}|{sequence}|"


def parse_point(text: str) -> Point:
    """Parses one bookmark.

    Raises:
        RemoteProtocolError: with reason `bad_bookmark`, naming the forms that are understood.
    """
    text = text.strip()
    if text == EPOCH:
        return Point("epoch")
    if text in (NOW, "0|1"):
        return Point("now")
    match = _BOOKMARK.match(text)
    if match:
        publisher, sequence = int(match[1]), int(match[2])
        if 0 < publisher < 1 << 64 and sequence < 1 << 63:
            return Point("message", publisher, sequence)
    match = _TIMESTAMP.match(text)
    if match:
        try:
            moment = _moment_of(match[1], match[2])
        except ValueError:
            moment = None
        if moment is not None:
            micros = int((match[3] or "0").ljust(6, "0"))
            return Point("time", time_us=int(moment.timestamp()) * 1_000_000 + micros)
    raise RemoteProtocolError(
        f"bookmark {text[:80]!r} is of an unknown form: use 0, 0|1|, publisher|sequence|, "
        "a comma-separated list of these, a UTC time like 20260102T030405Z, or a range [a:b)",
        "bad_bookmark",
    )


def _moment_of(day: str, time: str) -> datetime:
    """Returns the moment of `20260102` and `030405`. A list may have thousands of them, and
    strptime would take ten times as long."""
    return datetime(
        int(day[:4]), int(day[4:6]), int(day[6:]), int(time[:2]), int(time[2:4]), int(time[4:]),
        tzinfo=UTC,
    )  # fmt: skip


def _points(text: str) -> tuple[Point, ...]:
    parts = text.split(",")
    if len(parts) > BOOKMARKS_MAX:
        raise RemoteProtocolError(
            f"bookmark list of {len(parts)} entries: give at most {BOOKMARKS_MAX}", "bad_bookmark"
        )
    points = tuple(dict.fromkeys([parse_point(part) for part in parts if part.strip()]))
    if not points:
        raise RemoteProtocolError("empty bookmark: use 0 for the first message", "bad_bookmark")
    return points


def parse_position(text: str) -> Position:
    """Parses a bookmark, a list or a range.

    Raises:
        RemoteProtocolError: with reason `bad_bookmark`.
    """
    text = text.strip()
    if text[:1] in ("[", "("):
        if text[-1:] not in ("]", ")") or text.count(":") != 1:
            raise RemoteProtocolError(
                f"bookmark range {text[:80]!r} is not of the form [begin:end): [ or (, then ) or ]",
                "bad_bookmark",
            )
        begin, end = text[1:-1].split(":")
        return Position(
            _points(begin),
            _points(end),
            begin_included=text[0] == "[",
            end_included=text[-1] == "]",
        )
    return Position(_points(text))
