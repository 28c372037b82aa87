"""The queue of a soak: workers in every region, who are killed as well, and what became of each
message. It is the load of a drill (services/drills/loads/queue_load.py), and judged as that is.

What its clients are given passes the relay, which may hold it up: how late a message may come is
set by what faults do to connections.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from raylay.services.drills.loads.queue_load import QueueLoad
from raylay.services.drills.queue_reading import Read, read_queue, with_names
from raylay.services.verification.laws.queue_delivery import QueueVerdict

if TYPE_CHECKING:
    from soak.driver import Soak

QUEUE = "soak-queue"
TOPIC = "soak-work"
TOPICS = frozenset((QUEUE.encode(), TOPIC.encode()))
"""As journals have them."""
DECLARED: dict[str, Any] = {
    "name": QUEUE,
    "message_type": "json",
    "underlying": TOPIC,
    "lease": "10s",
    "subscription_backlog_max": 10,
}
HELD_UP = 2.0
"""A line that was narrow delivers late what gathered there: so many times as long as it was."""


class Working:
    """See the file's docstring. Owner: the soak's event loop. Lifecycle: `open` to `close`."""

    def __init__(self, run: Soak) -> None:
        self._run = run
        self.load: QueueLoad | None = None

    async def open(self) -> None:
        """Begins."""
        run = self._run
        members = {name: m for group in run.groups for name, m in run.members(group).items()}
        self.load = QueueLoad(
            str(run.plan.seed),
            run.groups,
            await run.status(),
            members,
            queue=QUEUE,
            topic=TOPIC,
            network_us=int((run.plan.pause_s_max * HELD_UP + 1.0) * 1e6),
        )
        assert not self.load.why, self.load.why
        await self.load.open(lambda name, group: run.options(group))

    @property
    def regions(self) -> list[str]:
        """That have workers."""
        return self.load.regions if self.load is not None else []

    async def kill(self, region: str, seconds: float) -> None:
        """A region's workers die, and others come after a while."""
        assert self.load is not None
        held = await self.load.kill(region)
        self._run.note(f"workers of {region} killed for {seconds:.1f} s, with {held} messages")
        try:
            await asyncio.sleep(seconds)
        finally:
            await self.load.hire(region)
        self._run.note(f"workers of {region} are back")

    async def settle(self, wait_s: float) -> None:
        """Everything is done and acknowledged."""
        if self.load is not None:
            await self.load.settle(wait_s, self._run.status)

    async def close(self) -> None:
        """Ends every client."""
        if self.load is not None:
            await self.load.close()

    async def judge(self) -> QueueVerdict | None:
        """What became of everything; None: there was no queue."""
        load, run = self.load, self._run
        if load is None:
            return None
        statuses = await run.status()
        load.note_left(statuses)
        read: dict[str, Read] = {}
        for name in load.names:
            read[name], why = await asyncio.to_thread(
                read_queue, run.fabric.data_directory(name), 0, TOPIC, QUEUE, load.publishers
            )
            if why:
                load.complaints.append(f"the journal of {name} cannot be read further: {why}")
        incarnations = {name: [int(told["incarnation"], 16)] for name, told in statuses.items()}
        return load.judge(
            with_names(read, incarnations),
            run.breaker.lost,
            run.breaker.excuses,
            is_undisturbed=False,
        )
