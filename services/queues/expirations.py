"""The expiry times of a queue's messages."""

from __future__ import annotations

import heapq

from raylay.services.queues.message import GONE, QueuedMessage

STEP_US = 100_000
"""The length of a step, in microseconds. Messages that expire within one step do so together, at
its end."""
STALE_MAX = 1_000
"""The number of entries of messages that have left the queue which are kept in any case."""


class MessageExpirations:
    """The messages that expire, by time: a few bytes for each.

    Attributes:
        overdue: the messages whose time is over and that could not be expired then, because a
            consumer holds them or another instance owns them.
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
        """The time at which the next message may expire, in microseconds since 1970; 0: never."""
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
        """Returns the messages whose time has ended since the last call, and adds them to
        `overdue`."""
        found: list[QueuedMessage] = []
        while self._order and self._order[0] * STEP_US <= now_us:
            there = self._steps.pop(heapq.heappop(self._order))
            self._count -= len(there)
            found += [message for message in there if message.state != GONE]
        self.overdue.update(found)
        return found

    def clean(self, live: int) -> None:
        """Drops entries of messages that have left the queue, if there are many beside those of the
        `live` messages in it."""
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
