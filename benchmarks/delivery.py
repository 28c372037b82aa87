"""Messages a second handed to consumers, every body read."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from functools import partial

from context import Bench, Figure, best_of, body, publish_all

from raylay.services.client import EPOCH, LmdbBookmarkStore, Subscription

FANOUT = 10
FANOUT_MESSAGES = 100_000
REPLAY_MESSAGES = 500_000
REPLAYS = ("replay", "replay_seen_100ms", "replay_seen_each_batch")


async def _read(subscription: Subscription, count: int) -> None:
    """Reads `count` messages with all their bodies."""
    received = length_bytes = 0
    async for batch in subscription.batches():
        for each in batch.bodies():
            length_bytes += len(each)
        received += batch.count
        if received >= count:
            break
    subscription.unsubscribe()
    assert received == count and length_bytes == 128 * count, (received, length_bytes)


async def fanout_10_deliveries(bench: Bench) -> list[Figure]:
    """One publisher, ten subscribers with a connection each, on one instance."""
    fabric = bench.single()
    message = body(128)
    clients = [bench.client(fabric) for _ in range(FANOUT)]
    await asyncio.gather(*(client.connect() for client in clients))

    async with bench.client(fabric) as publisher:

        async def run() -> float:
            topic = "bench/fanout"
            subscriptions = [await client.subscribe(topic) for client in clients]
            readers = [asyncio.create_task(_read(each, FANOUT_MESSAGES)) for each in subscriptions]
            started_s = time.perf_counter()
            await publish_all(publisher, topic, message, FANOUT_MESSAGES)
            await asyncio.gather(*readers)
            return FANOUT * FANOUT_MESSAGES / (time.perf_counter() - started_s)

        value = await best_of(3, run)
    await asyncio.gather(*(client.close() for client in clients))
    return [Figure("fanout_10_deliveries", value, "deliveries/s")]


async def replay(bench: Bench) -> list[Figure]:
    """A bookmark subscription from the first message on: one that nothing is kept of, and what it
    costs to keep what was seen on disk, every 100 ms and with each batch."""
    fabric = bench.single()
    async with bench.client(fabric) as publisher:
        await publish_all(publisher, "bench/replay", body(128), REPLAY_MESSAGES)

    async def run(flush_ms: int | None) -> float:
        directory = tempfile.TemporaryDirectory(dir=bench.directory)
        with directory as path, contextlib.closing(LmdbBookmarkStore(f"{path}/store")) as store:
            kept = {} if flush_ms is None else {"bookmark_store": store}
            async with bench.client(fabric, bookmark_flush_ms=flush_ms or 0, **kept) as client:
                started_s = time.perf_counter()
                await _read(await client.subscribe("bench/replay", bookmark=EPOCH), REPLAY_MESSAGES)
                return REPLAY_MESSAGES / (time.perf_counter() - started_s)

    return [
        Figure(name, await best_of(3, partial(run, flush_ms)), "messages/s")
        for name, flush_ms in zip(REPLAYS, (None, 100, 0), strict=True)
    ]
