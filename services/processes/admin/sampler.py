"""The values of an instance for all requests: asked once however many want them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from raylay.services.admin.lags import Lags
from raylay.services.admin.rates import CounterRates
from raylay.services.admin.resources import Snapshot, instance_branch
from raylay.services.admin.snapshot_pages import SnapshotPages
from raylay.services.admin.tree import Branch
from raylay.services.processes.admin.host import HostSample
from raylay.services.processes.admin.instance_source import InstanceSource

FRESH_S = 1.0
"""Age up to which a sample answers a request."""


class SnapshotReadings(Protocol):
    """Reads values of an instance from the operating system and files, without asking the instance
    (`InstanceReadings`)."""

    def read(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """Returns the values that go with a snapshot. May block."""

    def close(self) -> None:
        """Closes the open files."""


class Sampler:
    """Keeps the last sample of an instance and its host.

    Owner: the process's event loop; trees are made in a thread. Lifecycle: `close` once. One
    request to the instance is under way at a time: its answer serves all requests that wait.

    Args:
        host: reads the host. May block.
        readings: reads values of the instance without asking it; None: there are no such values.
        more: returns values of this process that go with each sample.
    """

    def __init__(
        self,
        instance: InstanceSource,
        host: Callable[[], HostSample],
        clock: Callable[[], float] = time.monotonic,
        readings: SnapshotReadings | None = None,
        more: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._instance = instance
        self._host = host
        self._clock = clock
        self._readings = readings
        self._more = more
        self._rates = CounterRates()
        self._pages = SnapshotPages()
        self._lags = Lags()
        self._tree: Branch = {}
        self._taken_s: float | None = None
        self._running: asyncio.Task[Branch] | None = None
        self._thread = ThreadPoolExecutor(1, "raylay-sampler")
        self.snapshot: Snapshot = {}
        """The last sample as the instance told it, with the rows of all pages and what this process
        read by itself."""
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

    async def close(self) -> None:
        """Ends the thread."""
        if self._readings is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._readings.close)
        self._thread.shutdown()

    def _done(self, task: asyncio.Task[Branch]) -> None:
        self._running = None
        if not task.cancelled():
            task.exception()  # Whoever waited was told; with nobody waiting nobody needs to be.

    async def _take(self) -> Branch:
        told: Snapshot = await self._instance.snapshot()
        more = self._more()
        now_s, time_us = self._clock(), time.time_ns() // 1000
        # Very many clients are much to put together: requests are answered meanwhile.
        self.snapshot, self._tree = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._made, told, more, now_s, time_us
        )
        self.time_us, self._taken_s = time_us, now_s
        return self._tree

    def _made(
        self, told: Snapshot, more: Mapping[str, Any], now_s: float, time_us: int
    ) -> tuple[Snapshot, Branch]:
        now_us = round(now_s * 1_000_000)
        snapshot = {**self._pages.merge(told, now_us), **more}
        if self._readings is not None:
            snapshot |= self._readings.read(snapshot)
        self._lags.add(snapshot, time_us, now_us)
        self._rates.begin(now_us)
        tree: Branch = {
            "instance": instance_branch(snapshot, self._rates, time_us),
            "host": self._host(),
        }
        return snapshot, tree
