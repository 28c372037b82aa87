"""Schedules of recurring work: at intervals, or at a time of the day or week (behaviour.md 8,
`amps-action-on-schedule`).

Pure: times are arguments. Intervals are measured by the steady clock, which is never set; times of
the day by the wall clock, in the host's time zone unless they end with Z (UTC).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Any, Literal

from raylay.services.errors import ConfigurationError
from raylay.services.messages.units import (
    Milliseconds,
    Written,
    format_milliseconds,
    parse_milliseconds,
)

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
LATE_US_MAX = 3_600_000_000
"""Microseconds after which a missed moment is not made up for: the clock was set past it, or the
process stood still."""
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIME_OF_DAY = re.compile(
    rf"(?:(?P<day>{'|'.join(_WEEKDAYS)})\s+at\s+)?"
    r"(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?P<utc>Z)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Occasion:
    """The time of recurring work: either an interval or a moment of the day or week.

    Attributes:
        every_ms: interval in milliseconds; 0 with an empty `at`: due at every call.
        at: `00:32` or `Saturday at 11:00`; with Z at the end in UTC.
    """

    every_ms: int = 0
    at: str = ""

    def check(self, what: str) -> None:
        """Raises ConfigurationError where the moment does not exist."""
        if self.every_ms < 0:
            raise ConfigurationError(f"{what}: every_ms is {self.every_ms}: give 0 or more")
        if self.at and not is_time_of_day(self.at):
            raise ConfigurationError(
                f"{what}: at is {self.at!r}: give a time such as 00:32 or 'Saturday at 11:00', "
                "with Z behind it for UTC"
            )

    def between_ms(self) -> int:
        if not self.at:
            return self.every_ms
        return WEEK_MS if " " in self.at.strip() else DAY_MS


def is_time_of_day(text: str) -> bool:
    """Returns whether a text names a time (`00:32`, `Saturday at 11:00`), not an interval."""
    return _TIME_OF_DAY.fullmatch(text.strip()) is not None


def read_occasions(value: Any) -> tuple[Occasion, ...]:
    """The occasions that a file has: intervals (`15s`), times of the day (`00:32`, `00:32Z` in UTC)
    or of the week (`Saturday at 11:00`), one or several: each is one.

    Raises:
        ConfigurationError: a text is none of these, or there is none.
    """
    texts = (value,) if isinstance(value, str | int) else tuple(value)
    if not texts:
        raise ConfigurationError("expected one time or several, got none")
    return tuple(text if isinstance(text, Occasion) else _occasion(text) for text in texts)


def _occasion(value: object) -> Occasion:
    text = str(value).strip()
    if is_time_of_day(text):
        return Occasion(at=text)
    try:
        every_ms = parse_milliseconds(text)
    except ConfigurationError:
        every_ms = 0
    if not every_ms:
        raise ConfigurationError(
            "expected an interval such as 15s, a time such as '00:32', or a weekday such as "
            f"'Saturday at 11:00', got {value!r}"
        )
    return Occasion(every_ms)


def _shown(occasions: tuple[Occasion, ...]) -> list[str]:
    return [occasion.at or format_milliseconds(occasion.every_ms) for occasion in occasions]


Occasions = Annotated[tuple[Occasion, ...], Written(read_occasions, _shown)]


def next_us(at: str, wall_us: int) -> int:
    """Returns the first such moment after `wall_us`, both in microseconds since 1970. A moment that
    summer time leaves out is an hour later; of one that comes twice, the first counts."""
    found = _TIME_OF_DAY.fullmatch(at.strip())
    assert found is not None, at
    zone = UTC if found["utc"] else None
    moment = time(int(found["hour"]), int(found["minute"]), int(found["second"] or 0))
    weekday = _WEEKDAYS.index(found["day"].lower()) if found["day"] else None
    # Begins a day early, because days in a time zone do not begin when UTC's do.
    date = datetime.fromtimestamp(wall_us / 1e6, zone).date() - timedelta(days=1)
    while True:
        if weekday is None or date.weekday() == weekday:
            due_us = round(datetime.combine(date, moment, zone).timestamp() * 1e6)
            if due_us > wall_us:
                return due_us
        date += timedelta(days=1)


class Timetable:
    """The due times of one recurring task. Owner: the object that performs the task. Lifecycle: one
    start of the instance; occasions during its downtime are not made up for.

    With an interval, the first occasion is after the grace period, and the others follow one
    interval after each call that found it due; a clock that was set back makes the next one due at
    once.
    """

    __slots__ = ("_at", "_due_us", "_every_us", "_from_us", "_grace_us", "_last_us")

    def __init__(self, occasion: Occasion, grace_period_ms: int = 0) -> None:
        self._at = occasion.at
        self._every_us = occasion.every_ms * 1000
        self._grace_us = grace_period_ms * 1000
        self._due_us: int | None = None
        self._from_us: int | None = None
        """Time by the steady clock at which the grace period of a time of the day ends."""
        self._last_us = 0

    def is_due(self, now_us: int, wall_us: int) -> bool:
        """Returns whether the task is due; the first call marks the start.

        Args:
            now_us: time by the steady clock.
            wall_us: time by the wall clock, microseconds since 1970.
        """
        return self._at_is_due(now_us, wall_us) if self._at else self._interval_is_due(now_us)

    def remaining_us(self, now_us: int, wall_us: int) -> int:
        """Returns the microseconds until the task is due, by the clocks as they are now; 0: it may
        be due, or was never asked for. A time of the day within the grace period counts as well."""
        if self._due_us is None:
            return 0
        return max(0, self._due_us - (wall_us if self._at else now_us))

    def _interval_is_due(self, now_us: int) -> bool:
        set_back = now_us < self._last_us
        self._last_us = now_us
        if self._due_us is None:
            # Nothing is due in the grace period; without one, the first occasion is one interval
            # after the start.
            self._due_us = now_us + max(self._grace_us, self._every_us)
            return self._due_us == now_us
        if set_back:
            self._due_us = min(self._due_us, now_us + self._every_us)
        if now_us < self._due_us:
            return False
        self._due_us = now_us + self._every_us
        return True

    def _at_is_due(self, now_us: int, wall_us: int) -> bool:
        set_back = wall_us < self._last_us
        self._last_us = wall_us
        if self._due_us is None or self._from_us is None:
            self._from_us = now_us + self._grace_us
            self._due_us = next_us(self._at, wall_us)
            return False
        if set_back:
            self._due_us = min(self._due_us, next_us(self._at, wall_us))
        if wall_us < self._due_us:
            return False
        late_us = wall_us - self._due_us
        self._due_us = next_us(self._at, wall_us)
        return late_us <= LATE_US_MAX and now_us >= self._from_us


@dataclass(frozen=True, slots=True)
class JournalAction:
    """An action on old journal segments, on a schedule.

    Attributes:
        do: `compress`, `archive` or `remove`.
        age_ms: minimum time since a segment was last written to, in milliseconds.
        every: the occasions of the action.
    """

    do: Literal["compress", "archive", "remove"]
    age_ms: Milliseconds
    every: Occasions

    def check(self, what: str) -> None:
        """Raises ConfigurationError where a value is wrong."""
        if self.do not in ("compress", "archive", "remove"):
            raise ConfigurationError(f"{what}: do is {self.do!r}: give compress, archive or remove")
        if self.age_ms < 0:
            raise ConfigurationError(f"{what}: age_ms is {self.age_ms}: give 0 or more")
        if not self.every or any(not each.at and not each.every_ms for each in self.every):
            raise ConfigurationError(f"{what}: {self.do} has no schedule: give `every` or `at`")
        for each in self.every:
            each.check(what)


class JournalSchedule:
    """The due journal actions of an instance. Owner: the instance. Lifecycle: one start."""

    def __init__(self, actions: tuple[JournalAction, ...]) -> None:
        self._tables = [(action, [Timetable(when) for when in action.every]) for action in actions]

    def due(self, now_us: int, wall_us: int) -> list[JournalAction]:
        """Returns the actions that are due now, in the configured order; see `Timetable.is_due`."""
        # Every timetable is asked, although one would decide, because each counts from when it was
        # asked last.
        return [
            action
            for action, tables in self._tables
            if any([table.is_due(now_us, wall_us) for table in tables])
        ]
