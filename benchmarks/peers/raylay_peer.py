"""Raylay: a sync pair, started as every figure of `make bench` is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from context import Bench
from memory import forked_from
from peer import Bodies, Peer, Publisher, QueueConsumer, Reader

from raylay.services.client import Client, Server
from raylay.services.fabric import Fabric

DOWNGRADE_AGE = "500ms"
STATE, WORK = "bench/state", "bench/work"
FABRICS: dict[str, dict[str, Any]] = {
    "pair": {},
    "by-age": {"downgrade": {"age": DOWNGRADE_AGE, "by_evidence": False}},
    "state": {"sow_topics": [{"name": STATE, "message_type": "json", "keys": ["/id"]}]},
    "work": {
        "queues": [
            {
                "name": "work",
                "message_type": "json",
                "kind": "queue",
                "underlying": WORK,
                "subscription_backlog_max": 1_000,
            }
        ]
    },
}
"""Configurations of the sync pair, by its name: one without anything for all loads that need no
more. One pair runs at a time."""


class RaylayPublisher(Publisher):
    """A client; its acks come as the highest sequence that is durable."""

    def __init__(self, make: Callable[..., Client], topic: str) -> None:
        super().__init__()
        self.client = make(on_persisted=self._persisted)
        self._topic = topic
        self._upto = 0

    def _persisted(self, upto: int) -> None:
        self.count_acked(upto - self._upto)
        self._upto = upto

    async def publish(self, body: bytes) -> None:
        sequence = await self.client.publish(self._topic, body)
        if not self.sent:
            self._upto = sequence - 1
        self.sent += 1

    async def close(self) -> None:
        await self.client.close()


class RaylayReader(Reader):
    """A client that queries."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def get(self, key: str) -> bytes:
        (found,) = await self.client.sow(STATE, filter=f"/id = '{key}'").all()
        return bytes(found.body)

    async def close(self) -> None:
        await self.client.close()


class RaylayConsumer(QueueConsumer):
    """A client that takes messages of the queue; each is acknowledged when the next is asked for,
    and acknowledgments go together."""

    def __init__(self, client: Client, backlog: int, took: Callable[[int], None]) -> None:
        self.client = client
        self._work = client.queue("work", message_type="json", backlog=backlog)
        self._took = took

    async def begin(self) -> None:
        """Subscribes."""
        await self.client.connect()
        await self._work.__aenter__()
        self._taking = asyncio.create_task(self._take())

    async def _take(self) -> None:
        took = self._took
        async for _ in self._work:
            took(1)

    async def settle(self) -> None:
        await self.client.flush()

    async def close(self) -> None:
        self._taking.cancel()
        await self._work.__aexit__(None, None, None)
        await self.client.close()


class Raylay(Peer):
    """Two instances, a link each way."""

    name = "raylay"
    copies = "both disks"

    def __init__(self) -> None:
        self._bench: Bench | None = None
        self._name = "pair"
        self._pids: list[int] = []
        self._began: dict[str, str] = {}
        """Of each topic, a bookmark from before its first message: what earlier loads left in the
        journal is not read for it, as peers that drop their topics do not."""

    @staticmethod
    def missing() -> str:
        return ""

    @property
    def _fabric(self) -> Fabric:
        assert self._bench is not None
        sections = {"downgrade": {"age": DOWNGRADE_AGE}, **FABRICS[self._name]}
        return self._bench.fabric(self._name, 2, **sections)

    async def _use(self, name: str) -> None:
        """Goes on with another pair."""
        if name != self._name:
            assert self._bench is not None
            await asyncio.to_thread(self._bench.stop, self._name)
            self._name = name
            await asyncio.to_thread(self._find_pids)

    async def start(self, directory: Path) -> None:
        self._bench = Bench(directory)
        await asyncio.to_thread(lambda: self._fabric)
        await asyncio.to_thread(self._find_pids)

    def _find_pids(self) -> None:
        fabric = self._fabric
        names = [server.instance for server in fabric.servers()]
        states: list[dict[str, Any]] = fabric.status()["instances"]
        links = [int(to["pid"]) for state in states for to in state["destinations"].values()]
        self._pids = [*map(fabric.pid, names), *links]
        self._pids += forked_from(self._pids)

    async def stop(self) -> None:
        if self._bench is not None:
            await asyncio.to_thread(self._bench.close)

    def pids(self) -> list[int]:
        return self._pids

    async def make_topic(self, topic: str, *, readable_again: bool = False) -> None:
        if self._name != "by-age":
            await self._use("pair")
        began = datetime.now(UTC) - timedelta(seconds=1)
        self._began[topic] = began.strftime("%Y%m%dT%H%M%S.%fZ")

    async def drop_topic(self, topic: str) -> None:
        pass

    def _client(self, **options: Any) -> Client:
        assert self._bench is not None
        return self._bench.client(self._fabric, **options)

    async def held(self, topic: str) -> list[int]:
        return [await self._held_by(server, topic) for server in self._fabric.servers()]

    async def _held_by(self, server: Server, topic: str) -> int:
        assert self._bench is not None
        self._bench._clients += 1
        count = 0
        async with Client(f"held-{self._bench._clients}", servers=[server]) as client:
            subscription = await client.subscribe(f"bench/{topic}", bookmark=self._began[topic])

            async def read() -> None:
                nonlocal count
                async for batch in subscription.batches():
                    count += batch.count

            reading = asyncio.create_task(read())
            await subscription.caught_up.wait()
            while subscription.queued_messages:
                await asyncio.sleep(0)
            if not reading.cancel():
                await reading  # It ended before its time: says why.
        return count

    async def publisher(self, topic: str) -> Publisher:
        publisher = RaylayPublisher(self._client, f"bench/{topic}")
        await publisher.client.connect()
        return publisher

    async def subscribe(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        client = self._client()
        await client.connect()
        subscription = await client.subscribe(f"bench/{topic}")

        async def read() -> None:
            async for batch in subscription.batches():
                bodies(list(batch.bodies()))

        reading = asyncio.create_task(read())

        async def end() -> None:
            reading.cancel()
            await client.close()

        return end

    async def replay(self, topic: str, count: int) -> int:
        received = length_bytes = 0
        async with self._client() as client:
            subscription = await client.subscribe(f"bench/{topic}", bookmark=self._began[topic])
            async for batch in subscription.batches():
                for each in batch.bodies():
                    length_bytes += len(each)
                received += batch.count
                if received >= count:
                    return length_bytes
        raise AssertionError("the subscription ended")

    async def fail(self, topic: str) -> Callable[[], object]:
        async with self._client() as client:
            victim = client.instance
        pid = await asyncio.to_thread(self._fabric.pid, victim)
        return lambda: os.kill(pid, signal.SIGKILL)

    async def leave_to_age(self) -> None:
        await self._use("by-age")

    async def make_state(self, topic: str) -> None:
        await self._use("state")
        async with self._client() as client:
            await client.sow_delete(STATE, filter="1 = 1")
            await client.flush()

    async def drop_state(self, topic: str) -> None:
        pass

    async def keys_held(self, topic: str) -> list[int]:
        counts = []
        for server in self._fabric.servers():
            async with self._client(servers=[server]) as client:
                counts.append(len(await client.sow(STATE).all()))
        return counts

    async def state_publisher(self, topic: str, *, watched: bool) -> Publisher:
        publisher = RaylayPublisher(self._client, STATE)
        await publisher.client.connect()
        return publisher

    async def reader(self, topic: str) -> Reader:
        client = self._client()
        await client.connect()
        return RaylayReader(client)

    async def watch(self, topic: str, bodies: Bodies) -> Callable[[], object]:
        client = self._client()
        await client.connect()
        following = await client.sow_and_subscribe(STATE)

        async def read() -> None:
            async for message in following:
                bodies([bytes(message.body)])

        reading = asyncio.create_task(read())

        async def end() -> None:
            reading.cancel()
            await client.close()

        return end

    async def make_queue(self, topic: str) -> str:
        await self._use("work")
        return WORK.removeprefix("bench/")

    async def drop_queue(self, topic: str) -> None:
        pass

    async def consumer(
        self, topic: str, backlog: int, took: Callable[[int], None]
    ) -> QueueConsumer:
        consumer = RaylayConsumer(self._client(), backlog, took)
        await consumer.begin()
        return consumer

    async def left(self, topic: str) -> int:
        async with self._client() as client:
            return int((await client.queue_status("work")).get("queue_depth", 0))

    async def mend(self) -> None:
        await asyncio.to_thread(self._fabric.wait_ready)
        await asyncio.to_thread(self._fabric.wait_connected)
        await asyncio.to_thread(self._find_pids)
