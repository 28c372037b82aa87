"""The watch over Ray's head, by a sign of life that needs no Ray: since when it has been away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from raylay.services.admin.fabric_view import HeadSight
from raylay.services.net.ray_head import answers_as_head

LOOK_S = 10.0
"""Time, in seconds, between two looks."""
ANSWER_S = 2.0
MISSES = 2
"""Looks in a row without an answer from which the head counts as away: one alone may have hit a
busy moment."""


class HeadWatch:
    """Looks at Ray's head every few seconds, one connection at a time.

    Owner: the process's event loop; each look is made in a thread.

    Args:
        address: returns where the head is, `host:port`; empty: that is not known.
        answers: returns whether something that lives listens at an address.
        now_us: returns the time in microseconds since 1970.
    """

    def __init__(
        self,
        address: Callable[[], Awaitable[str]],
        answers: Callable[[str, float], bool] = answers_as_head,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._address = address
        self._answers = answers
        self._now_us = now_us
        self._misses = 0
        self._missed_us = 0
        self._task: asyncio.Task[None] | None = None
        self.sight: HeadSight | None = None
        """The head as of the last look; None: nothing is known of it yet, or where it is."""

    def start(self) -> None:
        """Begins to look."""
        self._task = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Stops looking."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Looks once."""
        address = await self._address()
        if self.sight is not None and self.sight.address != address:
            self._misses, self.sight = 0, None
        if not address:
            return
        asked_us = self._now_us()
        if await asyncio.to_thread(self._answers, address, ANSWER_S):
            self._misses, self.sight = 0, HeadSight(address)
            return
        self._misses += 1
        if self._misses == 1:
            self._missed_us = asked_us
        if self._misses >= MISSES:
            self.sight = HeadSight(address, self._missed_us)
