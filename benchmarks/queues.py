"""A queue on one instance, and one that two sites share: from publish to acknowledged. The same on
Redis streams with consumer groups: queues_redis.py.

Publisher and consumers are clients in this process; each consumer has a connection of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from context import Bench, Figure, body, publish_all
from memory import anonymous_mb
from queues_redis import redis_queue

from raylay.services.client import Client
from raylay.services.fabric import Fabric, Topic
from raylay.services.hosts.latency import quantile

CASES = ((1, 1), (4, 1), (16, 1), (1, 100), (4, 100), (16, 100))
"""Consumers, and the backlog of each."""
MESSAGES = {1: 2_000, 100: 60_000}
"""By backlog."""
RUNS = 2
LOCAL = tuple(f"queue_{consumers}_backlog_{backlog}" for consumers, backlog in CASES)
REDIS = tuple(f"redis_{name}" for name in LOCAL)
OF_REDIS = tuple(f"{name}_of_redis" for name in LOCAL)
BATCHED = ("queue_1_batches_100",)
PACED = ("queue_deliver_1000_ms_p50", "queue_deliver_1000_ms_p99")
SHARED = ("queue_pair_4_backlog_100", "queue_pair_share_of_publisher", "queue_moves_first_ms",
          "queue_moves_all_ms")  # fmt: skip
MEMORY = ("queue_memory_bytes",)
PACED_PER_S = 1_000
PACED_S = 6.0
TICK_S = 0.001
QUEUED = 1_000_000
SETTLE_S = 2.0
WAIT_S_MAX = 120.0
BACKLOG = 100
PAIR_MESSAGES = 50_000
MOVES_PER_S = 500


def _fabric(name: str, kind: str, instances: int) -> Fabric:
    queue = {
        "name": "work",
        "message_type": "json",
        "kind": kind,
        "underlying": "bench/work",
        "subscription_backlog_max": 1_000,
    }
    return Fabric(
        name,
        topics=[Topic("bench/.*")],
        queues=[queue],
        tracing={"directory": "traces"},
        logs={"target": "file", "level": "warning"},
    ).region(name, instances=instances)


async def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.perf_counter() + WAIT_S_MAX
    while not is_so():
        if time.perf_counter() > deadline_s:
            raise TimeoutError(f"after {WAIT_S_MAX:.0f} s not all was delivered")
        await asyncio.sleep(TICK_S)


class _Consumers:
    """Consumers, each with a connection of its own, that acknowledge what they get."""

    def __init__(self, clients: list[Client], backlog: int, *, by_batch: bool = False) -> None:
        self.clients = clients
        self.counts = [0] * len(clients)
        self.took: Callable[[int, bytes], None] | None = None
        self._backlog = backlog
        self._by_batch = by_batch
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    @property
    def count(self) -> int:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        return sum(self.counts)

    async def __aenter__(self) -> _Consumers:
        for number, client in enumerate(self.clients):
            await self._stack.enter_async_context(client)
            work = client.queue("work", message_type="json", backlog=self._backlog)
            await self._stack.enter_async_context(work)
            self._tasks.append(asyncio.create_task(self._consume(number, work)))
        return self

    async def _consume(self, number: int, work: Any) -> None:
        counts = self.counts
        if self._by_batch:
            async for batch in work.batches():
                counts[number] += len(batch)
            return
        async for message in work:
            counts[number] += 1
            if self.took is not None:
                self.took(number, message.body)

    async def done(self) -> None:
        """All acknowledgments are on disk."""
        for client in self.clients:
            await client.flush()

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stack.aclose()


async def _best(
    messages: int, consumers: _Consumers, run: Callable[[], Awaitable[object]]
) -> float:
    """Messages a second, the best of some runs: published, delivered, acknowledged on disk."""
    found = []
    for _ in range(RUNS):
        wanted = consumers.count + messages
        started_s = time.perf_counter()
        publishing = asyncio.ensure_future(run())
        await _until(lambda: consumers.count >= wanted)  # noqa: B023
        await publishing
        await consumers.done()
        found.append(messages / (time.perf_counter() - started_s))
        assert consumers.count == wanted
    return max(found)


async def queue_local(bench: Bench) -> list[Figure]:
    """One instance, one publisher: by consumers and their backlog; beside Redis."""
    fabric = _fabric("queues", "local", 1)
    await asyncio.to_thread(fabric.start, bench.directory / "queues")
    figures, message = [], body(128)
    try:
        async with bench.client(fabric) as publisher:
            for count, backlog in CASES:
                clients = [bench.client(fabric) for _ in range(count)]
                async with _Consumers(clients, backlog) as consumers:
                    messages = MESSAGES[backlog]
                    run = partial(publish_all, publisher, "bench/work", message, messages)
                    value = await _best(messages, consumers, run)
                figures.append(Figure(f"queue_{count}_backlog_{backlog}", value, "messages/s"))
            figures.append(await _batched(bench, fabric, publisher, message))
            figures += await _paced(bench, fabric, publisher)
    finally:
        await asyncio.to_thread(fabric.stop)
    beside = await redis_queue(bench.directory / "redis", CASES, MESSAGES, RUNS, message)
    for ours, redis in zip(figures, beside, strict=False):
        figures.append(Figure(f"redis_{ours.name}", redis, "messages/s"))
        figures.append(Figure(f"{ours.name}_of_redis", ours.value / redis, "ratio"))
    return figures


async def _batched(bench: Bench, fabric: Fabric, publisher: Client, message: bytes) -> Figure:
    """One consumer that reads batches."""
    clients, messages = [bench.client(fabric)], MESSAGES[BACKLOG]
    async with _Consumers(clients, BACKLOG, by_batch=True) as consumers:
        run = partial(publish_all, publisher, "bench/work", message, messages)
        value = await _best(messages, consumers, run)
    return Figure(BATCHED[0], value, "messages/s")


async def _paced(bench: Bench, fabric: Fabric, publisher: Client) -> list[Figure]:
    """From `publish()` to the consumer, 4 of them with a backlog of 100."""
    took_ms: list[float] = []

    def took(_: int, found: bytes) -> None:
        took_ms.append((time.perf_counter() - float(found[10:30])) * 1000)

    total = int(PACED_PER_S * PACED_S)
    async with _Consumers([bench.client(fabric) for _ in range(4)], BACKLOG) as consumers:
        consumers.took = took
        started_s, sent = time.perf_counter(), 0
        while sent < total:
            due = min(total, int((time.perf_counter() - started_s) * PACED_PER_S) + 1)
            for _ in range(due - sent):
                await publisher.publish("bench/work", _stamped())
            sent = due
            await asyncio.sleep(TICK_S)
        await _until(lambda: consumers.count >= total)
        await consumers.done()
    steady = took_ms[PACED_PER_S // 2 :]  # the first half second warms up
    return [
        Figure(PACED[0], quantile(steady, 0.5), "ms"),
        Figure(PACED[1], quantile(steady, 0.99), "ms"),
    ]


def _stamped() -> bytes:
    return b'{"text": "%020.9f%s"}' % (time.perf_counter(), b"x" * 96)


async def queue_pair(bench: Bench) -> list[Figure]:
    """A queue of a sync pair, two consumers at each instance, one publisher at the first. Then the
    two beside the publisher go, while it publishes on."""
    fabric = _fabric("queues-pair", "queue", 2)
    await asyncio.to_thread(fabric.start, bench.directory / "queues-pair")
    await asyncio.to_thread(fabric.wait_connected)
    here, there = fabric.servers()
    try:
        async with bench.client(fabric, servers=[here]) as publisher:
            far = _Consumers([bench.client(fabric, servers=[there]) for _ in range(2)], BACKLOG)
            async with far:
                near_clients = [bench.client(fabric, servers=[here]) for _ in range(2)]
                async with _Consumers(near_clients, BACKLOG) as near:
                    figures = await _both(publisher, near, far)
                    far_at_s: list[tuple[float, float]] = []
                    far.took = lambda _, found: far_at_s.append(
                        (float(found[10:30]), time.perf_counter())
                    )
                    publishing = asyncio.create_task(_publish_on(publisher))
                    await asyncio.sleep(SETTLE_S)
                stopped_s = time.perf_counter()
                await asyncio.sleep(SETTLE_S)
                publishing.cancel()
                await _until(lambda: bool(far_at_s))
                await publisher.flush()
                last_s = 0.0
                while far_at_s and far_at_s[-1][1] != last_s:
                    last_s = far_at_s[-1][1]
                    await asyncio.sleep(SETTLE_S)
    finally:
        await asyncio.to_thread(fabric.stop)
    moved = [got_s - stopped_s for sent_s, got_s in far_at_s if sent_s <= stopped_s < got_s]
    new = [got_s - stopped_s for sent_s, got_s in far_at_s if sent_s > stopped_s]
    return [
        *figures,
        Figure(SHARED[2], min(new) * 1000, "ms"),
        Figure(SHARED[3], max(moved, default=0.0) * 1000, "ms"),
    ]


async def _both(publisher: Client, near: _Consumers, far: _Consumers) -> list[Figure]:
    message, rates = body(128), []
    for _ in range(RUNS):
        near_before, wanted = near.count, near.count + far.count + PAIR_MESSAGES
        started_s = time.perf_counter()
        publishing = asyncio.create_task(
            publish_all(publisher, "bench/work", message, PAIR_MESSAGES)
        )
        await _until(lambda: near.count + far.count >= wanted)  # noqa: B023
        await publishing
        await asyncio.gather(near.done(), far.done())
        rates.append(PAIR_MESSAGES / (time.perf_counter() - started_s))
        share = (near.count - near_before) / PAIR_MESSAGES
    return [Figure(SHARED[0], max(rates), "messages/s"), Figure(SHARED[1], share, "of 1")]


async def _publish_on(publisher: Client) -> None:
    while True:
        await publisher.publish("bench/work", _stamped())
        await asyncio.sleep(1 / MOVES_PER_S)


async def queue_memory(bench: Bench) -> list[Figure]:
    """What the owner's process has more of for each of a million messages that nobody takes."""
    fabric = _fabric("queues-memory", "local", 1)
    await asyncio.to_thread(fabric.start, bench.directory / "queues-memory")
    try:
        async with bench.client(fabric) as client:
            # The records that it keeps at hand are bounded, and no part of what is queued.
            while not (before := await client.queue_status("work"))["pid"]:
                await asyncio.sleep(0.2)
            idle_mb = anonymous_mb(before["pid"])
            await publish_all(client, "bench/work", body(128), QUEUED)
            deadline_s = time.perf_counter() + WAIT_S_MAX
            while (now := await client.queue_status("work")).get("queue_depth", 0) < QUEUED:
                if time.perf_counter() > deadline_s:
                    raise TimeoutError(f"the owner has {now}")
                await asyncio.sleep(0.2)
            loaded_mb = anonymous_mb(now["pid"])
    finally:
        await asyncio.to_thread(fabric.stop)
    return [Figure(MEMORY[0], (loaded_mb - idle_mb) * 1e6 / QUEUED, "bytes a message")]
