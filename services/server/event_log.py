"""The latest events of an instance: a bounded ring for `events()`, and one log line each."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from raylay.services.telemetry.logs import Logger

EVENTS_MAX = 10_000


class EventLog:
    """The latest events of an instance.

    Owner: the instance. Numbers run from 1 and are never used twice in one process.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self.last_number = 0

    def add(self, event: str, details: dict[str, Any]) -> None:
        """Keeps and logs one event. Details never replace the event's own keys."""
        self.keep(event, details)
        self.write(event, details)

    def keep(self, event: str, details: dict[str, Any]) -> None:
        """Keeps an event without logging it."""
        self.last_number += 1
        self._events.append(
            {
                **details,
                "number": self.last_number,
                "time_us": time.time_ns() // 1000,
                "event": event,
            }
        )

    def write(self, event: str, details: dict[str, Any]) -> None:
        """Logs an event without keeping it. May be called on any thread."""
        self._logger.report(event, **details)

    def after(self, number: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The events behind `number`, oldest first, at most `limit`."""
        if number >= self.last_number:
            return []
        return [event for event in self._events if event["number"] > number][:limit]
