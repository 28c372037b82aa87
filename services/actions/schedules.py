"""The schedules of actions: intervals, and times of the day or week (behaviour.md 8.1)."""

from __future__ import annotations

import re
from fractions import Fraction

from raylay.services.actions.model import ActionDefinition
from raylay.services.errors import ConfigurationError
from raylay.services.replication.timetable import Occasion, Timetable, is_time_of_day

LOOK_US = 60_000_000
"""Microseconds after which times of the day are looked at again in any case, because somebody may
have set the clock."""
_UNITS_US = {
    "ns": Fraction(1, 1000),
    "us": Fraction(1),
    "ms": Fraction(1000),
    "s": Fraction(1_000_000),
    "m": Fraction(60_000_000),
    "min": Fraction(60_000_000),
    "h": Fraction(3_600_000_000),
    "d": Fraction(86_400_000_000),
    "w": Fraction(604_800_000_000),
}
_INTERVAL = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?|\.\d{1,18})\s*([A-Za-z]*)\s*")


def interval_us(text: str) -> int:
    """Returns the microseconds of an interval such as `500ms`, `1.5h` or `1w`. A number without a
    unit is refused, except 0.

    Raises:
        ConfigurationError: saying what was expected and what came.
    """
    found = _INTERVAL.fullmatch(text)
    if found is not None:
        number, unit = Fraction(found[1]), _UNITS_US.get(found[2].lower())
        if unit is not None:
            return int(number * unit)
        if not number and not found[2]:
            return 0
    raise ConfigurationError(
        f"expected an interval such as 500ms, 15s or 1d (units: {' '.join(_UNITS_US)}), got "
        f"{text[:40]!r}"
    )


def occasion_of(every: str) -> Occasion:
    """Returns the time that the option `Every` of a schedule gives.

    Raises:
        ConfigurationError: it gives none.
    """
    if is_time_of_day(every):
        return Occasion(at=every.strip())
    length_us = interval_us(every)
    if not length_us:
        raise ConfigurationError(f"expected an interval longer than 0, got {every!r}")
    return Occasion(every_ms=max(1, length_us // 1000))


class ScheduledActions:
    """The schedules of all actions. Owner: the engine. Lifecycle: one start of it; occasions while
    it does not run are not made up for.

    Args:
        actions: the actions; those without a schedule are left out.

    Raises:
        ConfigurationError: `Every` gives no time.
    """

    __slots__ = ("_now_us", "_tables", "_wall_us")

    def __init__(self, actions: tuple[ActionDefinition, ...]) -> None:
        self._tables = [
            (number, Timetable(occasion_of(on.option("Every"))))
            for number, action in enumerate(actions)
            for on in action.on
            if on.module == "schedule"
        ]
        self._now_us: int | None = None
        self._wall_us = 0

    def due(self, now_us: int, wall_us: int) -> list[int]:
        """Returns the numbers of the actions that are due, each once. The first call marks the
        start."""
        self._now_us, self._wall_us = now_us, wall_us
        # Every timetable is asked, because each counts from when it was asked last.
        found = [number for number, table in self._tables if table.is_due(now_us, wall_us)]
        return list(dict.fromkeys(found))

    def next_due_us(self) -> int | None:
        """Returns the time by the steady clock at which `due` is to be called again; None: there is
        no schedule."""
        if not self._tables:
            return None
        if self._now_us is None:
            return 0
        now_us, wall_us = self._now_us, self._wall_us
        return now_us + min(
            min(table.remaining_us(now_us, wall_us) for _, table in self._tables),
            LOOK_US,
        )
