"""The expiry times of a queue's messages."""

from __future__ import annotations

import heapq

from raylay.services.queues.message import GONE, QueuedMessage

STEP_US = 100_000
"""Messages that expire within so many microseconds do at once, at the end of them."""
STALE_MAX = 1_000
"""Messages that have left the queue and are still noted, beside as many as are in it."""


class MessageExpirations:
    """Messages by the time when they expire: a few bytes each.

    Attributes:
        overdue: messages whose time is over and that could not be expired then: a consumer has
            them, or another instance.
    """

    __slots__ = ("_count", "_order", "_steps", "overdue")

    def __init__(self) -> None:
        self._steps: dict[int, list[QueuedMessage]] = {}
        self._order: list[int] = []
        self._count = 0
        self.overdue: set[QueuedMessage] = set()

    def __len__(self) -> int:
        return self._count

    @property
    def first_us(self) -> int:
        """The time at which the next one may expire, in microseconds since 1970; 0: never."""
        return self._order[0] * STEP_US if self._order else 0

    def note(self, message: QueuedMessage, expires_us: int) -> None:
        step = -(-expires_us // STEP_US)
        there = self._steps.get(step)
        if there is None:
            there = self._steps[step] = []
            heapq.heappush(self._order, step)
        there.append(message)
        self._count += 1

    def due(self, now_us: int) -> list[QueuedMessage]:
        """Returns the messages whose time is over since they were last asked for: they are overdue
        now."""
        found: list[QueuedMessage] = []
        while self._order and self._order[0] * STEP_US <= now_us:
            there = self._steps.pop(heapq.heappop(self._order))
            self._count -= len(there)
            found += [message for message in there if message.state != GONE]
        self.overdue.update(found)
        return found

    def clean(self, live: int) -> None:
        """Forgets messages that are gone, where they are more than `live`, those in the queue."""
        if self._count <= 2 * live + STALE_MAX:
            return
        kept = {
            step: left
            for step, there in self._steps.items()
            if (left := [message for message in there if message.state != GONE])
        }
        self._steps = kept
        self._order = sorted(kept)
        self._count = sum(map(len, kept.values()))
