"""The events of all instances as one stream, whichever way the instances are asked.

An instance numbers its events, from 1 in each of its processes. A look asks every instance for the
events behind the last one that it told; a process that is another one is asked from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

FOLLOW_S = 0.25
"""Time, in seconds, between two looks that found nothing."""


@dataclass(frozen=True, slots=True)
class EventAnswer:
    """The answer of one instance to the question for its events.

    Attributes:
        process: name of the instance's process; each process numbers its events from 1.
        events: the events, the oldest first.
    """

    instance: str
    process: str
    events: list[dict[str, Any]]


class EventCursors:
    """The last event that each instance told, and its process."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, int]] = {}

    def last(self, instance: str) -> tuple[str, int]:
        """Returns the process that told the last event, and the number of that event; empty and 0:
        there was none."""
        return self._last.get(instance, ("", 0))

    def number_for(self, instance: str, process: str) -> int:
        """Returns the number of the last known event of a process, which is asked for later ones;
        0: none is known."""
        of, number = self.last(instance)
        return number if of == process else 0

    def take(self, answer: EventAnswer) -> None:
        """Notes the last event of an answer."""
        if answer.events:
            self._last[answer.instance] = answer.process, int(answer.events[-1]["number"])


def follow_events(
    look: Callable[[EventCursors], Iterable[EventAnswer]],
    *,
    follow: bool,
    after_us: int,
    stop: Callable[[], bool] | None,
) -> Iterator[dict[str, Any]]:
    """Yields the events of all instances, the oldest of each look first; see `Fabric.events`.

    Args:
        look: asks all instances once; those that do not answer are left out, and asked again by the
            next look.
    """
    cursors = EventCursors()
    while True:
        batch: list[dict[str, Any]] = []
        for answer in look(cursors):
            cursors.take(answer)
            batch += [{"instance": answer.instance, **event} for event in answer.events]
        batch.sort(key=lambda event: int(event["time_us"]))
        yield from (event for event in batch if event["time_us"] > after_us)
        if batch:
            # An instance tells a limited number at once: there may be more.
            continue
        if not follow or (stop is not None and stop()):
            return
        time.sleep(FOLLOW_S)
