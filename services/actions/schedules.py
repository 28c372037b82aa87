"""The schedules of actions: intervals, and times of the day or week (behaviour.md 8.1)."""

from __future__ import annotations

from raylay.services.actions.model import ActionDefinition
from raylay.services.actions.option_text import occasion
from raylay.services.replication.timetable import Timetable

LOOK_US = 60_000_000
"""Time, in microseconds, after which times of the day are checked again in any case, because the
clock may have been set."""


class ScheduledActions:
    """The schedules of all actions. Owner: the engine. Lifecycle: one start of it; occasions while
    it does not run are not made up for.

    Args:
        actions: the actions; those without a schedule are left out.

    Raises:
        ValueError: `Every` gives no time.
    """

    __slots__ = ("_now_us", "_tables", "_wall_us")

    def __init__(self, actions: tuple[ActionDefinition, ...]) -> None:
        self._tables = [
            (number, Timetable(occasion(on.option("Every"))))
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
