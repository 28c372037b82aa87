"""An instance of a real fabric is stopped and started while a client publishes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raylay.services.client import EPOCH, Client
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.maintenance import InstanceStop

pytestmark = pytest.mark.timeout(300)
MESSAGES_BETWEEN = 300


class RunningPublisher:
    """Publishes without end, and knows what was acknowledged."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._stopping = asyncio.Event()
        self.published = 0

    async def run(self) -> None:
        while not self._stopping.is_set():
            await self._client.publish(self._topic, b'{"sale": %d}' % self.published)
            self.published += 1
            if self.published % 20 == 0:
                await asyncio.sleep(0.005)

    async def more_acknowledged(self) -> None:
        """Returns when messages that were published from now on are acknowledged."""
        wanted = self.published + MESSAGES_BETWEEN
        while self.published < wanted:
            await asyncio.sleep(0.01)
        await self._client.flush(60)

    async def end(self, task: asyncio.Task[None]) -> None:
        self._stopping.set()
        await task
        await self._client.flush(60)


def status_of(fabric: Fabric, name: str) -> dict[str, Any]:
    return next(each for each in fabric.status()["instances"] if each["name"] == name)


def test_clients_go_on_while_an_instance_is_stopped_and_started(whole: Fabric) -> None:
    asyncio.run(stopped_and_started(whole))


async def stopped_and_started(whole: Fabric) -> None:
    topic = "sales/planned-stop"
    async with whole.client("planned-stop-publisher", group="near") as client:
        publisher = RunningPublisher(client, topic)
        task = asyncio.create_task(publisher.run())
        await publisher.more_acknowledged()

        done: InstanceStop = await asyncio.to_thread(whole.maintenance.stop, "near-1")
        assert ("near-2", "near-1") in done.downgraded and not done.untold and not done.lacking
        assert status_of(whole, "near-1")["is_stopped"]
        destination = status_of(whole, "near-2")["destinations"]["near-1"]
        assert destination["downgraded_by_hand"], "a publisher there waits for nobody"
        await asyncio.wait_for(publisher.more_acknowledged(), 60)
        again = await asyncio.to_thread(whole.maintenance.stop, "near-1")
        assert again.was_stopped

        # Nobody revives it, and it does not block others.
        await asyncio.to_thread(whole.wait_connected, 60)
        with pytest.raises(FabricError, match="raylay start near-1"):
            await asyncio.to_thread(whole.restart, "near-1")
        with pytest.raises(FabricError, match=r"no other instance of group near is ready"):
            await asyncio.to_thread(whole.maintenance.stop, "near-2")
        # It is its configuration, too: a peer that restarts does not wait for it.
        await asyncio.to_thread(whole.rolling_restart, ("near-2",))
        await asyncio.wait_for(publisher.more_acknowledged(), 60)
        assert status_of(whole, "near-2")["destinations"]["near-1"]["downgraded_by_hand"]

        assert await asyncio.to_thread(whole.maintenance.start, "near-1") == []
        await asyncio.wait_for(publisher.more_acknowledged(), 60)
        await publisher.end(task)
        published = publisher.published
    destination = status_of(whole, "near-2")["destinations"]["near-1"]
    assert destination["sync"] and not destination["downgraded_by_hand"]
    back = status_of(whole, "near-1")["destinations"]["near-2"]
    assert back["sync"] and not back["downgraded_by_hand"], "its own acks wait, too"

    # Nothing acknowledged is lost, and the one that was away has everything.
    await asyncio.to_thread(whole.wait_connected, 60)
    for name in ("near-1", "near-2"):
        address = next(each for each in whole.servers("near") if each.instance == name)
        async with Client(f"planned-stop-{name}", [address]) as reader:
            subscription = await reader.subscribe(topic, bookmark=EPOCH)
            bodies = set()
            async with asyncio.timeout(60):
                async for message in subscription:
                    bodies.add(message.body)
                    if len(bodies) == published:
                        break
