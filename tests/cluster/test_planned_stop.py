"""An instance of a real fabric is stopped, started and removed while clients go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from raylay.services.client import EPOCH, Client, Server
from raylay.services.errors import FabricError
from raylay.services.fabric import Fabric
from raylay.services.fabric.maintenance import InstanceStop

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
WORK = 30
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
    for server in whole.servers("near"):
        assert await count(server, topic, published) == published


# -- removal ---------------------------------------------------------------------------------------
def declare(instances: int) -> Fabric:
    work = {"name": "work", "message_type": "json", "underlying": "orders"}
    fabric = Fabric("shrinking", topics=["orders", "sales"], queues=[work])
    fabric.region("near", instances=instances)
    fabric.region("far", instances=1)
    return fabric.connect_regions("async")


def test_an_instance_is_removed_while_clients_go_on(tmp_path: Path) -> None:
    with declare(3).start(tmp_path / "data") as fabric:
        fabric.wait_connected()
        asyncio.run(removed(fabric))


async def removed(fabric: Fabric) -> None:
    last = next(each for each in fabric.servers("near") if each.instance == "near-3")
    async with Client("queue-publisher", [last]) as publisher:
        for number in range(WORK):
            await publisher.publish("orders", b"%d" % number)
        await publisher.flush(60)

    # Its queue has messages that nobody takes: only it could deliver them.
    planned = await asyncio.to_thread(fabric.apply, declare(2), dry_run=True)
    assert planned.removed == ("near-3",) and not planned.started
    assert {each["name"] for each in fabric.status()["instances"]} > {"near-3"}
    await asyncio.to_thread(fabric.instances.wait_connected)
    with pytest.raises(FabricError, match=rf"queue work has {WORK} messages that near-3 owns"):
        await asyncio.to_thread(fabric.maintenance.stop, "near-3", leaving=["near-3"], timeout_s=2)
    async with Client("still-admitted", [last]) as client:
        await client.publish("orders", b"%d" % WORK)
        await client.flush(60)

    taken: set[bytes] = set()
    has_all = asyncio.Event()

    async def consume() -> None:
        async with fabric.client("worker", group="near") as worker, worker.queue("work") as queue:
            async for message in queue:
                taken.add(message.body)
                if len(taken) == WORK + 1:
                    break
            await worker.flush()
            has_all.set()

    async with fabric.client("removal-publisher", group="near") as client:
        publisher = RunningPublisher(client, "sales")
        publishing = asyncio.create_task(publisher.run())
        consuming = asyncio.create_task(consume())
        await publisher.more_acknowledged()
        done = await asyncio.to_thread(fabric.apply, declare(2))
        assert done.removed == ("near-3",) and "near-1" in done.restarted
        assert (Path(done.directories[0]) / "journal").exists(), "its data is kept"
        await asyncio.wait_for(publisher.more_acknowledged(), 60)
        await asyncio.wait_for(has_all.wait(), 60)
        await publisher.end(publishing)
        await consuming
        published = publisher.published
    names = [each["name"] for each in fabric.status()["instances"]]
    assert names == ["near-1", "near-2", "far-1"]
    assert fabric.handle.actor("near-3") is None
    await asyncio.to_thread(fabric.wait_connected, 60)
    for server in fabric.servers():
        assert await count(server, "sales", published) == published

    # It comes back by another apply, with what it had, and gets the rest.
    again = await asyncio.to_thread(fabric.apply, declare(3))
    assert again.started == ("near-3",)
    await asyncio.to_thread(fabric.wait_connected, 60)
    back = next(each for each in fabric.servers("near") if each.instance == "near-3")
    assert await count(back, "sales", published) == published


async def count(server: Server, topic: str, wanted: int) -> int:
    """The number of different messages that an instance has of a topic."""
    async with Client(f"count-{server.instance}", [server]) as reader:
        subscription = await reader.subscribe(topic, bookmark=EPOCH)
        bodies: set[bytes] = set()
        async with asyncio.timeout(60):
            async for message in subscription:
                bodies.add(message.body)
                if len(bodies) == wanted:
                    break
    return len(bodies)
