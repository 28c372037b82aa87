"""The values of an instance for all requests: asked once however many want them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from raylay.services.admin.host import HostSample
from raylay.services.admin.rates import CounterRates
from raylay.services.admin.resources import Snapshot, instance_branch
from raylay.services.admin.tree import Branch
from raylay.services.processes.admin.instance_source import InstanceSource

FRESH_S = 1.0
"""Age up to which a sample answers a request."""


class Sampler:
    """Keeps the last sample of an instance and its host.

    Owner: the process's event loop. One question to the instance is out at a time: its answer is
    that of everybody who waits.
    """

    def __init__(
        self,
        instance: InstanceSource,
        host: Callable[[], HostSample],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance = instance
        self._host = host
        self._clock = clock
        self._rates = CounterRates()
        self._tree: Branch = {}
        self._taken_s: float | None = None
        self._running: asyncio.Task[Branch] | None = None
        self.snapshot: Snapshot = {}
        """The last sample as the instance told it."""
        self.time_us = 0
        """Time of the last sample, in microseconds since 1970."""

    async def tree(self) -> Branch:
        """Returns `/amps/instance` and `/amps/host`, at most `FRESH_S` old.

        Raises:
            FabricError: the instance is away.
        """
        if self._taken_s is not None and self._clock() - self._taken_s <= FRESH_S:
            return self._tree
        if self._running is None:
            self._running = asyncio.ensure_future(self._take())
            self._running.add_done_callback(self._done)
        # Who gives up waiting must not end the question for the others.
        return await asyncio.shield(self._running)

    def _done(self, task: asyncio.Task[Branch]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # Whoever waited was told; with nobody waiting nobody needs to be.

    async def _take(self) -> Branch:
        self.snapshot = snapshot = await self._instance.snapshot()
        host = await asyncio.to_thread(self._host)
        now_s = self._clock()
        self._rates.begin(round(now_s * 1_000_000))
        self.time_us = time.time_ns() // 1000
        self._tree = {
            "instance": instance_branch(snapshot, self._rates, self.time_us),
            "host": host,
        }
        self._taken_s = now_s
        return self._tree
